"""Defines `PooledObject`: an object of a `ResourcePool`, whose methods are called with a time limit, and in
threads if they are not async."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from air.tools import threads
from air.tools.states import is_cancelled

_LOG = logging.getLogger(__name__)


@dataclass(eq=False)
class PooledObject:
    """The object `value` of a pool. `pool` identifies the pool, `pool_name` is its name in messages, and
    `seconds` is the time limit of each call of a method."""

    value: Any
    pool: Hashable
    pool_name: str
    seconds: float
    uses: int = 0
    """The number of episodes that have borrowed the object."""
    ending: asyncio.Task[None] | None = None
    """The task that closes the object. If it is not None, the object must not be borrowed."""

    @property
    def kind(self) -> str:
        """The name of the object's type, for messages."""
        return type(self.value).__name__

    async def failure(self, what: str, method: Callable[[], Any]) -> BaseException | None:
        """Calls `method`, a method of the object or a function for it, with the name `what`. The time limit
        does not include the wait for a thread. Returns the exception with which the call failed, which is
        also logged; None if it succeeded. Raises the exceptions of `threads.start`."""
        work: threads.ThreadCall | None = None
        if not inspect.iscoroutinefunction(method):
            owner = (self.pool, what)
            work = await threads.start(method, owner, self.pool_name, seconds=self.seconds)
        failure: BaseException | None = None
        deadline = asyncio.timeout(self.seconds)
        try:
            async with deadline:
                await (method() if work is None else _wait(work))
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            failure = error  # the method's own, such as of a connection that it lost
        except (Exception, BaseExceptionGroup, SystemExit) as error:
            failure = error
        if deadline.expired():
            failure = TimeoutError(f"it took longer than {self.seconds:g} seconds")
        if failure is not None:
            message = "%s: `%s` of a %s failed, so the object is not used further: %s"
            parts = self.pool_name, what, self.kind, error_text(failure)
            _LOG.warning(message, *parts, exc_info=failure)
        return failure


async def _wait(work: threads.ThreadCall) -> None:
    try:
        outcome = await asyncio.shield(work.outcome)
    finally:
        if not work.outcome.done():
            work.abandon()
    await outcome.result()


def close_in_threads(objects: Sequence[PooledObject], seconds: float) -> None:
    """Closes objects when the process ends, at the same time, in threads that do not keep the process alive.
    Waits up to `seconds`. Failures are logged, and also objects whose `close` is async, which needs an event
    loop."""
    running: list[tuple[threading.Thread, PooledObject]] = []
    for one in objects:
        method = getattr(one.value, "close", None)
        if inspect.iscoroutinefunction(method):
            message = "%s: a %s was not closed, because its event loop does not run"
            _LOG.warning(message, one.pool_name, one.kind)
        elif callable(method):
            thread = threading.Thread(target=_close, args=(one, method), daemon=True)
            thread.start()
            running.append((thread, one))
    end = time.monotonic() + seconds
    for thread, one in running:
        thread.join(max(0.0, end - time.monotonic()))
        if thread.is_alive():
            message = "%s: `close` of a %s took longer than %g seconds"
            _LOG.warning(message, one.pool_name, one.kind, seconds)


def _close(one: PooledObject, method: Callable[[], Any]) -> None:
    try:
        method()
    except BaseException:  # even SystemExit, which would end the thread without a message
        _LOG.warning("%s: `close` of a %s failed", one.pool_name, one.kind, exc_info=True)


def error_text(error: BaseException) -> str:
    """Returns the type and the message of an exception in one line."""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
