"""Finds the container image for a sandbox's template (E2B's name for what a sandbox starts from). A template
is the name of a container image on this machine, with or without the prefix `air-`, or the name of one of
E2B's own templates."""

from __future__ import annotations

import asyncio
import time

from air.errors import AirError
from air.sandbox.contract.box import BoxLimits, BoxSpec, OpenBox
from air.sandbox.docker import engine
from air.sandbox.pool.image_ids import DIGEST_SECONDS, Digests
from air.serve.e2b.errors import ApiError
from air.serve.e2b.request_bodies import LONGEST

OWN = {"base": "air-e2b", "code-interpreter-v1": "air-e2b", "code-interpreter": "air-e2b"}
"""Maps the name of each of E2B's own templates to the container image that replaces it."""
_MARGIN = 3600
"""Seconds by which the lifetime of a sandbox's box (container) exceeds the longest timeout of a sandbox, so
that the sandbox always ends before its box does."""


class Templates:
    """Finds the container image of a template, and the settings of boxes (containers) that start from it.

    Asks the container engine for the image of a template at most once in `DIGEST_SECONDS`. The ids of images
    are stored in `digests`, the cache of the pool of boxes, so that the pool does not ask for them again.
    """

    def __init__(self, limits: BoxLimits, digests: Digests | None = None) -> None:
        self._limits = limits.model_copy(update={"seconds": float(LONGEST + _MARGIN)})
        self._digests = digests or Digests()
        self._images: dict[str, tuple[float, str]] = {}
        """Maps each template's name to a pair: the time of the last request to the container engine, and the
        name of the image."""
        self._asking = asyncio.Lock()

    async def spec(self, template: str) -> BoxSpec:
        """Returns the settings of the box (container) for a sandbox with this template (E2B's name for what a
        sandbox starts from; here a container image). Raises ApiError if there is no such template."""
        image = await self.image(template)
        return BoxSpec(image=image, limits=self._limits, open=OpenBox())

    async def image(self, template: str) -> str:
        """Returns the name of the container image for a template, for instance `air-e2b` for E2B's template
        `base`. Raises ApiError if this machine has no such image; this is not checked for E2B's own
        templates."""
        if name := OWN.get(template):
            return name
        async with self._asking:  # one request serves all concurrent callers
            asked_at, name = self._images.pop(template, (0.0, ""))
            if not name or time.monotonic() - asked_at > DIGEST_SECONDS:
                asked_at = time.monotonic()
                name = await self._requested(template)
            self._images[template] = (asked_at, name)
            return name

    async def _requested(self, template: str) -> str:
        """Asks the container engine for the image of a template, and returns the image's name: `template`
        itself or, if there is no such image, `air-` and `template`. Raises ApiError if there is neither, or
        the container engine fails."""
        for name in (template, f"air-{template}"):
            asked_at = time.monotonic()
            if digest := await asyncio.to_thread(_digest, name):
                self._digests.store(name, digest, asked_at)
                return name
        raise ApiError(404, f"template {template!r} not found: no image has that name")


def _digest(name: str) -> str:
    """Returns the id of the container image called `name`, or an empty string if the container engine has no
    such image. Raises ApiError if the container engine fails."""
    if not name.strip() or name.startswith("-"):
        return ""
    try:
        description = engine.image(name)
    except AirError as error:
        raise ApiError(503, str(error)) from error
    return str(description["Id"]) if description else ""
