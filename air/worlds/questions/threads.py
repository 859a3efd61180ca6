"""The thread pool that runs the slow work of question episodes, so that the event loop is not blocked."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

_threads: dict[int, ThreadPoolExecutor] = {}
"""The thread pool of this process, by the process id. A forked process inherits this dict but not its
parent's threads. So it finds no pool under its own id, and creates one."""


def threads() -> ThreadPoolExecutor:
    """Returns the thread pool of this process, which has as many threads as the machine has cores."""
    pid = os.getpid()
    if pid not in _threads:
        _threads[pid] = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="questions")
    return _threads[pid]
