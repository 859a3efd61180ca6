"""Runs comparisons of answers in a thread pool of their own.

Answers may be hostile, that is, written to be slow to compare: one comparison may take seconds, and the
agreement of many answers a minute. In the event loop, a comparison would stop all episodes and servers
meanwhile. In the event loop's default thread pool, it would delay the work on files and the graders.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TypeVar

from air.aio import run_in_thread
from air.rewards.proposals.agreement import STOP

T = TypeVar("T")


async def compare_in_thread(work: Callable[[], T]) -> T:
    """Runs `work`, a function that compares answers, in a thread, so that slow comparisons do not block the
    event loop. Returns its result, or raises its error.

    If the caller is cancelled meanwhile, waits until the comparison in progress has ended, starts no further
    one, and then raises CancelledError. For this, `work` must compare by a function that `equal_answers`
    returned.
    """
    stop = threading.Event()

    def stoppable() -> T:
        STOP.set(stop)  # only in the copy of the context in which the thread runs
        return work()

    return await run_in_thread(_threads(os.getpid()), stoppable, stop.set)


@lru_cache  # a forked process has no threads of its parent, so it needs a pool of its own
def _threads(pid: int) -> ThreadPoolExecutor:
    """Returns the thread pool for comparisons in the process `pid`, with one thread for each CPU core."""
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="comparisons")
