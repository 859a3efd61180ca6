"""Boxes: isolated places to run commands. `open_box` starts one; `pool.Pool` lends many.

Nothing heavy is imported here: a provider's module is loaded when its first box starts.
"""

from __future__ import annotations

import importlib

from air.errors import ConfigError
from air.sandbox.contract import ownership
from air.sandbox.contract.box import Box, BoxSpec
from air.sandbox.pool.gpu_leases import GpuLease
from air.sandbox.wire.guest_box import GuestBox

PROVIDERS = {
    "docker": ("air.sandbox.docker.box", "DockerBox"),
    "process": ("air.sandbox.process.box", "ProcessBox"),
}
"""Every provider: the module and the class, which has `async start(spec, *, run, gpus) -> GuestBox`."""


async def open_box(spec: BoxSpec, *, run: str = "", gpus: GpuLease | None = None) -> Box:
    """Starts a box and hands it out; use it through `async with`.

    Args:
        spec: the kind of box.
        run: the run that it belongs to, for labels; this process's own if empty.
        gpus: the GPUs it uses, `spec.gpus` of them; given back by the caller once it is closed.

    Raises:
        ConfigError: `gpus` are not as many as `spec.gpus`.
        MissingError: Docker or the image is missing; the error says what to do.
        BoxStartError: it did not start.
    """
    box = await start_box(spec, run=run, gpus=gpus)
    box.hand_out()
    return box


async def start_box(spec: BoxSpec, *, run: str = "", gpus: GpuLease | None = None) -> GuestBox:
    """Starts a box without handing it out: its time to live has not begun."""
    gpus = gpus or GpuLease()
    if len(gpus.uuids) != spec.gpus:
        raise ConfigError(
            f"a box needs {spec.gpus} GPUs, but got {len(gpus.uuids)}",
            where="gpus",
            remedy="take its box from a pool that has GPUs",
        )
    module, name = PROVIDERS[spec.provider]
    provider = getattr(importlib.import_module(module), name)
    box: GuestBox = await provider.start(spec, run=run, gpus=gpus)
    box.gpus = gpus.uuids
    run = run or ownership.run_id()
    box.events.start(
        spec, run=run, owner=ownership.owner(), workspace=box.seen_from_host or box.workspace
    )
    return box
