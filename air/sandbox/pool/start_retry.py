"""Two helpers of the box pool: `retry` repeats failed starts of boxes, and `Digests` caches the ids of
images."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from air.sandbox.contract.box import BoxSpec
from air.sandbox.docker.engine_errors import EngineAwayError, TransientStartError

ATTEMPTS = 4
AWAY_SECONDS = 60.0
"""Seconds for which the start of a box is repeated while the container engine does not answer, for example
because it restarts."""
DIGEST_SECONDS = 1.0
T = TypeVar("T")


async def retry(work: Callable[[], Awaitable[T]]) -> T:
    """Calls `work` and returns its result. If `work` raises `TransientStartError`, waits and calls it again.

    `work` is called at most `ATTEMPTS` times or, while the container engine does not answer
    (`EngineAwayError`), for `AWAY_SECONDS`. Then the last TransientStartError is raised. Any other error is
    raised at once.
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


class Digests:
    """A cache of image ids by image name. An id that is older than `DIGEST_SECONDS` is requested from the
    container engine again."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, str]] = {}
        self._asking = asyncio.Lock()

    async def of(self, spec: BoxSpec) -> str:
        """Returns the current id of the image of `spec`, or "" for a process box.

        Raises MissingError if no container engine answers or the image is not built, BoxStartError if the
        engine fails.
        """
        if spec.provider != "docker":
            return ""
        async with self._asking:  # one request serves all concurrent callers
            asked_at, digest = self._known.get(spec.image, (0.0, ""))
            if not digest or time.monotonic() - asked_at > DIGEST_SECONDS:
                from air.sandbox.docker import engine

                asked_at = time.monotonic()
                digest = await retry(lambda: engine.image_id(spec.image))
                self.store(spec.image, digest, asked_at)
            return digest

    def store(self, image: str, digest: str, asked_at: float) -> None:
        """Stores the id of an image, which the caller requested from the container engine at the monotonic
        time `asked_at`."""
        self._known[image] = (asked_at, digest)
