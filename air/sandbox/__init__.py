"""Boxes: isolated places to run commands. `open_box` starts one; `pool.Pool` lends many.

Nothing heavy is imported here: a provider's module is loaded when its first box starts.
"""

from __future__ import annotations

import importlib

from air.sandbox import cleanup
from air.sandbox.base import Box, BoxSpec
from air.sandbox.guestbox import GuestBox

PROVIDERS = {
    "docker": ("air.sandbox.docker", "DockerBox"),
    "process": ("air.sandbox.process", "ProcessBox"),
}
"""Every provider: the module and the class, which has `async start(spec, *, run) -> GuestBox`."""


async def open_box(spec: BoxSpec, *, run: str = "") -> Box:
    """Starts a box and hands it out; use it through `async with`.

    Args:
        spec: what kind of box.
        run: the run it belongs to, for labels; this process's own if empty.

    Raises:
        MissingError: Docker or the image is not there; says what to do.
        BoxStartError: it could not be started.
    """
    box = await start_box(spec, run=run)
    box.hand_out()
    return box


async def start_box(spec: BoxSpec, *, run: str = "") -> GuestBox:
    """Starts a box without handing it out: its time to live has not begun."""
    module, name = PROVIDERS[spec.provider]
    provider = getattr(importlib.import_module(module), name)
    box: GuestBox = await provider.start(spec, run=run)
    run = run or cleanup.run_id()
    box.events.start(spec, run=run, owner=cleanup.owner(), workspace=box.workspace)
    return box


def docker_available() -> str | None:
    """Why Docker cannot be used here, as half a line; None where it can. Blocks up to 10 s."""
    from air.sandbox import docker

    return docker.unusable()
