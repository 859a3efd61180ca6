"""Templates of sandboxes. A template is the name of a container image on this machine, with or without the
prefix `air-`, or the name of one of E2B's own templates."""

from __future__ import annotations

import asyncio

from air.errors import AirError
from air.sandbox.contract.box import BoxLimits, BoxSpec, OpenBox
from air.sandbox.docker import engine
from air.serve.e2b.bodies import LONGEST
from air.serve.e2b.errors import ApiError

OWN = {"base": "air-e2b", "code-interpreter-v1": "air-e2b", "code-interpreter": "air-e2b"}
"""Maps the name of each of E2B's own templates to the container image that replaces it."""
_MARGIN = 3600
"""Seconds that are added to the longest timeout of a sandbox for the lifetime of its box, so that the sandbox
always ends before its box does."""


class Templates:
    """Finds the image of a template, and the settings of boxes that start from it."""

    def __init__(self, limits: BoxLimits) -> None:
        self._limits = limits.model_copy(update={"seconds": float(LONGEST + _MARGIN)})

    async def spec(self, template: str) -> BoxSpec:
        """Returns the settings of the box of a sandbox with this template. Raises ApiError if there is no
        such template."""
        image = await self.image(template)
        return BoxSpec(image=image, limits=self._limits, open=OpenBox())

    async def image(self, template: str) -> str:
        """Returns the name of the container image for a template. Raises ApiError if this machine has no such
        image."""
        if name := OWN.get(template):
            return name
        for name in (template, f"air-{template}"):
            if await asyncio.to_thread(_exists, name):
                return name
        raise ApiError(404, f"template {template!r} not found: no image has that name")


def _exists(name: str) -> bool:
    """Whether the container engine has an image with this name. Raises ApiError if the container engine
    fails."""
    if not name.strip() or name.startswith("-"):
        return False
    try:
        return engine.image(name) is not None
    except AirError as error:
        raise ApiError(503, str(error)) from error
