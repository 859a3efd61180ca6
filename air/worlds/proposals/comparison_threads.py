"""Runs comparisons of answers in threads of their own.

A comparison of hostile answers may take seconds, and an agreement of many such answers a minute. In the event
loop, it would stop all episodes and servers meanwhile; in the threads that the event loop lends for files and
graders, it would keep these waiting.
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
    """Runs `work`, which compares answers by functions of `equal_answers`, in a thread, and returns its
    result. If the caller is cancelled meanwhile, waits until the comparison in progress has ended, begins no
    further one, and then raises CancelledError. Raises the errors of `work`."""
    stop = threading.Event()

    def stoppable() -> T:
        STOP.set(stop)  # only in the copy of the context in which the thread runs
        return work()

    return await run_in_thread(_threads(os.getpid()), stoppable, stop.set)


@lru_cache  # a forked process has no threads of its parent, so it needs a pool of its own
def _threads(pid: int) -> ThreadPoolExecutor:
    """Returns the pool of threads of the process `pid`. It has one thread for each comparison that may run at
    the same time."""
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="comparisons")
