"""Caches the ids of container images."""

from __future__ import annotations

import asyncio
import time

from air.sandbox.contract.box import BoxSpec
from air.sandbox.pool.start_retry import retry

DIGEST_SECONDS = 1.0


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
