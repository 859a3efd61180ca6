"""The threads in which episodes do what takes long, so that the event loop goes on."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

_threads: dict[int, ThreadPoolExecutor] = {}
"""By the id of the process: a forked process has none of its parent's threads."""


def threads() -> ThreadPoolExecutor:
    """Returns the threads of this process: as many as the machine has cores."""
    pid = os.getpid()
    if pid not in _threads:
        _threads[pid] = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="questions")
    return _threads[pid]
