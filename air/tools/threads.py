"""The threads in which tools that are not async run, so that the event loop goes on.

A thread cannot be ended. One that takes too long is left behind: it gives its place to others, and no exit of
the process waits for it.

Two numbers are bounded in a process: the threads at once, and for each tool the threads that were left
behind. So a tool that hangs takes threads from no other tool. A call beyond a bound raises
InfrastructureError, which names the tool. The calls of other episodes reached the bound: the agent of this
episode did not cause that, so it must not see it as an observation, and the failure breaker must count it. An
episode cannot mask itself so: while one of its own calls is left behind, `OpenTools` starts no thread, and
tells the model.
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
"""The largest number of threads at once in this process, without those that were left behind."""
MOST_LEFT = 64
"""The largest number of threads of one tool that were left behind and still run."""
_PATIENCE = 600.0
"""How long a call waits for a free thread, in seconds."""
_left: Counter[Hashable] = Counter()
"""How many threads were left behind and still run, by what they work for."""
_busy: Counter[str] = Counter()
"""How many threads run and were not left behind, by the name of what they work for."""
_lock = threading.Lock()


@dataclass(frozen=True)
class Outcome:
    """How a call ended. An error is not raised in the future, because a future takes not every
    exception."""

    value: Any = None
    error: BaseException | None = None


class Work:
    """Work in a thread, for the tool `owner` with a name. `start` makes it."""

    def __init__(self, owner: Hashable, name: str, pool: Pool) -> None:
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        """The future of how the work ended."""
        self._owner, self._name, self._pool = owner, name, pool
        self._ended = self._is_left = False
        with _lock:
            _busy[name] += 1

    def leave(self) -> None:
        """Leaves the thread behind, if it still runs: nobody waits for it."""
        with _lock:
            if self._ended or self._is_left:
                return
            self._is_left = True
            _left[self._owner] += 1
        self.give_place_back()

    def end(self) -> None:
        """Notes, in the thread, that the work has ended."""
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
    """Returns how many threads of a tool were left behind and still run."""
    with _lock:
        return _left[owner]


async def start(
    work: Callable[[], Any], owner: Hashable, name: str, *, patience: float = _PATIENCE
) -> Work:
    """Starts a thread that does `work` for the tool `owner` with a name. Waits up to `patience` seconds for a
    free place. Raises InfrastructureError if no thread could be started, or if `MOST_LEFT` threads of the
    tool were left behind and still run."""
    if left(owner) >= MOST_LEFT:
        raise InfrastructureError(
            f"{MOST_LEFT} earlier calls of the tool {name} still run after their time limit, so no further "
            "one is started: give its function a time limit of its own"
        )
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


def _deliver(future: asyncio.Future[Outcome], outcome: Outcome) -> None:
    if not future.done():
        future.set_result(outcome)


@functools.cache
def _pool(_pid: int) -> Pool:
    return Pool(MOST_THREADS)
