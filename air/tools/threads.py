"""The threads in which tool functions that are not async run, so that they do not block the event loop.

Python cannot stop a thread. A thread whose call exceeds its time limit is abandoned: it no longer counts
towards the limit on running threads, and the process does not wait for it at exit.

Both the number of running threads of the process and the number of abandoned threads of each tool are
limited, so that a tool that hangs cannot use up the threads of others. A call beyond a limit raises
InfrastructureError, which names the tool. Calls of other episodes have reached the limit: the agent of this
episode did not cause that, so it must not see it as an observation, and the failure breaker must count it.
An episode cannot mask itself in this way: while one of its own calls is abandoned, `OpenTools` starts no
thread for it, and tells the model.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import os
import threading
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from air.errors import InfrastructureError
from air.tools.pool import Pool

MOST_THREADS = 64
"""The maximum number of running threads in this process, without abandoned threads."""
MOST_LEFT = 64
"""While this number of abandoned threads of one tool still run, no further thread is started for the tool.
Threads that run already may be abandoned, too, so at most `MOST_LEFT + MOST_THREADS - 1` are."""
_PATIENCE = 600.0
"""How many seconds a call waits for a free thread before it raises InfrastructureError."""
_left: Counter[Hashable] = Counter()
"""The number of abandoned threads that still run, by the tool function that they run."""
_busy: Counter[str] = Counter()
"""The number of running threads that are not abandoned, by the name of the tool."""
_lock = threading.Lock()


@dataclass(frozen=True)
class Outcome:
    """The value or the exception with which a call ended. The future holds an Outcome even for an
    exception, because a future does not accept every exception."""

    value: Any = None
    error: BaseException | None = None


class Work:
    """A call that runs in a thread for the tool `owner`, which is called `name`. `start` makes it."""

    def __init__(self, owner: Hashable, name: str, pool: Pool) -> None:
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        """A future for the result of the call."""
        self._owner, self._name, self._pool = owner, name, pool
        self._ended = self._is_left = False
        with _lock:
            _busy[name] += 1

    def leave(self) -> None:
        """Abandons the thread if it still runs, and frees its place in the pool."""
        with _lock:
            if self._ended or self._is_left:
                return
            self._is_left = True
            _left[self._owner] += 1
        self.give_place_back()

    def end(self) -> None:
        """Called in the thread when the call has ended: frees the thread's place in the pool."""
        with _lock:
            self._ended = True
            if self._is_left:
                _left[self._owner] -= 1
                if not _left[self._owner]:
                    del _left[self._owner]
                return
        self.give_place_back()

    def give_place_back(self) -> None:
        """Lets another thread start in place of this one."""
        with _lock:
            _busy[self._name] -= 1
            if not _busy[self._name]:
                del _busy[self._name]
        self._pool.release()


def left(owner: Hashable) -> int:
    """Returns the number of abandoned threads of a tool that still run."""
    with _lock:
        return _left[owner]


async def start(
    work: Callable[[], Any], owner: Hashable, name: str, *, patience: float = _PATIENCE
) -> Work:
    """Waits for a free place and starts a thread that calls `work` for the tool `owner`, which is called
    `name`. Raises InfrastructureError if no place becomes free within `patience` seconds, if no thread can be
    started, or if `MOST_LEFT` abandoned threads of the tool still run."""
    _check_left(owner, name)
    pool = _pool(os.getpid())
    try:
        async with asyncio.timeout(patience):
            await pool.acquire()
    except TimeoutError:
        with _lock:
            holders = ", ".join(f"{name} ({count})" for name, count in _busy.most_common())
        raise InfrastructureError(
            f"all {MOST_THREADS} threads of tools are busy for {patience:g} seconds: {holders}"
        ) from None
    try:
        _check_left(owner, name)  # again: calls that waited here together may all hang
    except InfrastructureError:
        pool.release()
        raise
    loop = asyncio.get_running_loop()
    started = Work(owner, name, pool)
    context = contextvars.copy_context()

    def run() -> None:
        try:
            outcome = Outcome(context.run(work))
        except BaseException as error:  # of any kind: the caller decides
            outcome = Outcome(error=error)
        started.end()
        try:
            loop.call_soon_threadsafe(_deliver, started.outcome, outcome)
        except RuntimeError:
            return  # the loop is closed: nobody waits

    try:
        threading.Thread(target=run, name="air-tool", daemon=True).start()
    except RuntimeError as error:
        started.give_place_back()
        raise InfrastructureError(f"no thread for a tool: {error}") from error
    return started


def _check_left(owner: Hashable, name: str) -> None:
    """Raises InfrastructureError if `MOST_LEFT` abandoned threads of the tool `owner`, which is called
    `name`, still run."""
    if left(owner) >= MOST_LEFT:
        raise InfrastructureError(
            f"{MOST_LEFT} earlier calls of the tool {name} still run after their time limit, so no further "
            "one is started: give its function a time limit of its own"
        )


def _deliver(future: asyncio.Future[Outcome], outcome: Outcome) -> None:
    if not future.done():
        future.set_result(outcome)


@functools.cache
def _pool(_pid: int) -> Pool:
    return Pool(MOST_THREADS)
