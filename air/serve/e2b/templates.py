"""Templates of sandboxes: the container images of this machine, by the names that clients use."""

from __future__ import annotations

import asyncio

from air.errors import AirError
from air.sandbox.contract.box import BoxLimits, BoxSpec, OpenBox
from air.sandbox.docker import engine
from air.serve.e2b.bodies import LONGEST
from air.serve.e2b.errors import ApiError

OWN = {"base": "air-e2b", "code-interpreter-v1": "air-e2b", "code-interpreter": "air-e2b"}
"""E2B's own templates, and the images that take their place."""
_MARGIN = 3600
"""Seconds for which a box outlives the longest time of a sandbox, so that the sandbox ends it in order."""


class Templates:
    """Maps templates to images, and to the settings of boxes that start from them."""

    def __init__(self, limits: BoxLimits) -> None:
        self._limits = limits.model_copy(update={"seconds": float(LONGEST + _MARGIN)})

    async def spec(self, template: str) -> BoxSpec:
        """Returns the settings of a sandbox's box. Raises ApiError if there is no such template."""
        image = await self.image(template)
        return BoxSpec(image=image, limits=self._limits, open=OpenBox())

    async def image(self, template: str) -> str:
        """Returns the name of the image that is this template. Raises ApiError if there is none."""
        if name := OWN.get(template):
            return name
        for name in (template, f"air-{template}"):
            if await asyncio.to_thread(_exists, name):
                return name
        raise ApiError(404, f"template {template!r} not found: no image has that name")


def _exists(name: str) -> bool:
    """Whether the container engine has the image. Raises ApiError if it cannot tell."""
    if not name.strip() or name.startswith("-"):
        return False
    try:
        return engine.image(name) is not None
    except AirError as error:
        raise ApiError(503, str(error)) from error
