"""Compares how much processor time a function takes for a small and for a large input."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
TIMES = 8
"""How many times larger the large input is."""
MOST = 3 * TIMES
"""The largest ratio of the times that counts as linear growth; if a time grows with the square, it is 64."""
_SECONDS = 0.004
"""The shortest time that can be measured well."""
_LARGEST = 1 << 13


def growth(make: Callable[[int], T], use: Callable[[T], object]) -> float:
    """Returns the ratio of the times that `use` takes for the inputs `make(8 * n)` and `make(n)`.

    Only this thread's processor time counts, and of several attempts the shortest, so that load changes
    little. `n` is as large as the measurement needs, but limited: the time to copy megabytes depends on
    caches. A time below the measurable one counts as that.
    """
    size = 128
    while (small := _shortest(make(size), use)) < _SECONDS and size < _LARGEST:
        size *= 2
    return _shortest(make(TIMES * size), use) / max(small, _SECONDS)


def _shortest(argument: T, use: Callable[[T], object]) -> float:
    seconds = []
    for _ in range(4):
        began = time.thread_time()
        use(argument)
        seconds.append(time.thread_time() - began)
    return min(seconds)
