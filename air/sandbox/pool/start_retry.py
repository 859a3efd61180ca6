"""Two helpers of the pool of boxes (boxes are isolated places for commands, by default containers): `retry`
repeats failed starts of boxes, and `Digests` caches the ids of container images."""

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
"""The number of seconds for which `retry` repeats the start of a box while the container engine (Docker or
Podman) does not answer, for example because it restarts."""
DIGEST_SECONDS = 1.0
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


class Digests:
    """A cache of the ids of container images, by image name. Asks the container engine again for an id that
    was stored more than `DIGEST_SECONDS` seconds ago."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, str]] = {}
        self._asking = asyncio.Lock()

    async def of(self, spec: BoxSpec) -> str:
        """Returns the current id of the image of a container box with the settings `spec`, from the cache or,
        if the id in the cache is too old, from the container engine. Returns "" for a process box (a box
        without a container).

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
        """Stores `digest`, the id of the image with the name `image`. `asked_at` is the time
        (`time.monotonic()`) at which the caller asked the container engine for the id."""
        self._known[image] = (asked_at, digest)
