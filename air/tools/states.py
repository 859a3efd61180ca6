"""Makes and closes the states of tools: the objects, such as a shell, that tools keep for an episode."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from air.aio import wait_shielded
from air.errors import AirError, InfrastructureError
from air.tools import threads

_LOG = logging.getLogger(__name__)
_discarding: set[asyncio.Task[None]] = set()
"""The running asyncio tasks that close unused tool states. They are stored here so that they are not garbage
collected before they end: an event loop holds only weak references to its tasks."""
Close = Callable[[Any], Awaitable[None]]


async def close_state(state: Any) -> None:
    """Ends a tool's state (the object that the tool keeps for an episode): calls the state's method `close`,
    sync or async. Does nothing if there is no such method. Raises the exceptions of `close`."""
    method = getattr(state, "close", None)
    result = method() if callable(method) else None
    if inspect.isawaitable(result):
        await result


def is_cancelled() -> bool:
    """Returns whether the current task itself is being cancelled. False if only something that it awaits
    was cancelled."""
    task = asyncio.current_task()
    return task is None or bool(task.cancelling())


async def make_state(
    make: Callable[..., Any],
    arguments: tuple[Any, ...],
    name: str,
    seconds: float,
    *,
    close: Close = close_state,
    grace: float = 0.0,
) -> Any:
    """Makes the state of the tool `name` within `seconds`, and returns it: calls `make`, sync or async, with
    `arguments`. A function that is not async runs in a thread.

    If the call is cancelled or exceeds its time limit, waits up to `grace` seconds more for the thread, and
    `close` closes the unused state. If the thread still runs then, it is abandoned, and the state is closed
    as soon as it is made.

    Raises InfrastructureError if `make` fails or exceeds its time limit, because the agent, which has not
    acted yet, cannot have caused this. An AirError is raised unchanged."""
    message = f"the state of the tool {name} could not be made"
    work: threads.ThreadCall | None = None
    if not inspect.iscoroutinefunction(make):
        work = await threads.start(lambda: make(*arguments), make, name, seconds=seconds)
    deadline = asyncio.timeout(seconds)
    try:
        async with deadline:
            if work is None:
                return await make(*arguments)
            return await _from_thread(work, close, grace)
    except AirError:
        raise
    except Exception as error:
        if deadline.expired():
            message = f"{message} within {seconds:g} seconds"
            raise InfrastructureError(message) from None
        raise InfrastructureError(f"{message}: {type(error).__name__}: {error}") from error


async def _from_thread(work: threads.ThreadCall, close: Close, grace: float) -> Any:
    """Waits for the thread `work`, which makes a tool's state, and returns the state. Raises the error of the
    thread. If the caller is cancelled, an unused state is closed (see `make_state`)."""
    try:
        outcome = await asyncio.shield(work.outcome)
    except asyncio.CancelledError:
        try:
            if grace:
                await wait_shielded(asyncio.wait([work.outcome], timeout=grace))
        finally:
            work.abandon()
            if grace and work.outcome.done():
                await wait_shielded(_close_unused(work.outcome.result(), close))
            else:
                work.outcome.add_done_callback(lambda made: _discard(made, close))
        raise
    return await outcome.result()


def _discard(made: asyncio.Future[threads.CallOutcome], close: Close) -> None:
    """Starts a task that closes the state of a tool that a thread has made only after the episode stopped
    waiting for it; no episode will use this state. `made` is the finished future with the thread's outcome.
    If the thread failed, there is nothing to close."""
    if made.cancelled() or made.result().error is not None:
        return
    task = asyncio.get_running_loop().create_task(_close_unused(made.result(), close))
    _discarding.add(task)
    task.add_done_callback(_discarding.discard)


async def _close_unused(made: threads.CallOutcome, close: Close) -> None:
    if made.error is not None:
        return
    try:
        await close(await made.result())
    except Exception:  # a user's state may raise anything; the episode has failed already
        _LOG.warning("a tool's state could not be closed", exc_info=True)
