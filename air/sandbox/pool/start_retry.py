"""Repeats failed starts of boxes (isolated places for commands, by default containers)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from air.sandbox.docker.engine_errors import EngineAwayError, TransientStartError

ATTEMPTS = 4
AWAY_SECONDS = 60.0
"""The number of seconds for which `retry` repeats the start of a box while the container engine (Docker or
Podman) does not answer, for example because it restarts."""
T = TypeVar("T")


async def retry(work: Callable[[], Awaitable[T]]) -> T:
    """Calls `work` and returns its result. If `work` raises TransientStartError, waits and calls it again.

    Gives up after `ATTEMPTS` calls, and raises the last TransientStartError. If that is an EngineAwayError
    (the container engine does not answer), gives up after `AWAY_SECONDS` seconds instead. Any other error of
    `work` is raised at once.
    """
    async for attempt in AsyncRetrying(
        retry=retry_if_exception_type(TransientStartError),
        wait=wait_random_exponential(multiplier=0.2, max=5),
        stop=_should_stop,
        reraise=True,
    ):
        with attempt:
            return await work()
    raise AssertionError("the last attempt returns or raises")


def _should_stop(state: RetryCallState) -> bool:
    if state.outcome and isinstance(state.outcome.exception(), EngineAwayError):
        return (state.seconds_since_start or 0.0) > AWAY_SECONDS
    return state.attempt_number >= ATTEMPTS
