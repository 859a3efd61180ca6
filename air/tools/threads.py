"""The threads in which tools that are not async run, so that the event loop goes on.

A thread cannot be ended. One that takes too long is left behind, and no exit of the process waits for it.
The number of threads at once is bounded.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from air.errors import InfrastructureError
from air.tools.pool import Pool

MOST_THREADS = 64
"""The largest number of threads at once in this process, with those that were left behind."""
_PATIENCE = 600.0
"""How long a call waits for a free thread, in seconds."""


@dataclass(frozen=True)
class Outcome:
    """How a call ended. An error is not raised in the future, because a future takes not every
    exception."""

    value: Any = None
    error: BaseException | None = None


async def start(work: Callable[[], Any]) -> asyncio.Future[Outcome]:
    """Starts a thread that does `work`, as soon as one is free. Returns the future of its outcome.
    Raises InfrastructureError if no thread could be started."""
    pool = _pool(os.getpid())
    try:
        async with asyncio.timeout(_PATIENCE):
            await pool.acquire()
    except TimeoutError:
        message = f"all {MOST_THREADS} threads of tools are busy for {_PATIENCE:g} seconds"
        raise InfrastructureError(message) from None
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Outcome] = loop.create_future()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            outcome = Outcome(context.run(work))
        except BaseException as error:  # of any kind: the caller decides
            outcome = Outcome(error=error)
        pool.release()
        try:
            loop.call_soon_threadsafe(_deliver, future, outcome)
        except RuntimeError:
            return  # the loop is closed: nobody waits

    try:
        threading.Thread(target=run, name="air-tool", daemon=True).start()
    except RuntimeError as error:
        pool.release()
        raise InfrastructureError(f"no thread for a tool: {error}") from error
    return future


def _deliver(future: asyncio.Future[Outcome], outcome: Outcome) -> None:
    if not future.done():
        future.set_result(outcome)


@functools.cache
def _pool(_pid: int) -> Pool:
    return Pool(MOST_THREADS)
