"""Which images have no Python that runs the guest: found out when a box does not start, and kept, by
the image's digest, for as long as this process lives."""

from __future__ import annotations

import logging

from air.sandbox.docker import engine

_FOUND: set[str] = set()
_LOG = logging.getLogger(__name__)


async def is_known(image: str) -> bool:
    """Whether an image was found to have none; there need not be such an image."""
    return bool(_FOUND) and await _digest(image) in _FOUND


async def remember(image: str, why: str) -> None:
    """Keeps in mind that what has this name now has none, and says so once."""
    digest = await _digest(image)
    if digest and digest not in _FOUND:
        _FOUND.add(digest)
        _LOG.warning(
            "image %s has no Python 3.8 or later (%s): commands in its boxes go through the engine's "
            "exec, which is slower",
            image,
            why,
        )


async def _digest(image: str) -> str:
    """The engine's id of an image; empty where it has none of that name, or does not answer."""
    try:
        found = await engine.in_thread(lambda: engine.client().inspect_image(image))
    except engine.FOREIGN:
        return ""
    return str(found["Id"])
