"""Boxes: isolated places to run commands. `open_box` starts one box; a `pool.Pool` manages many.

Importing this package is cheap, because the module of a provider (`docker` or `process`) is imported only
when the first box of that provider starts.
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
"""Maps the name of each provider to the module and the class that implement it. Each of these classes has the
method `async start(spec, *, run, gpus) -> GuestBox`."""


async def open_box(spec: BoxSpec, *, run: str = "", gpus: GpuLease | None = None) -> Box:
    """Starts a box, starts its time to live, and returns it. Use the box with `async with`, which closes it.

    Args:
        spec: the settings of the box.
        run: the id of the run of air that the box belongs to, which the box's labels contain; if empty, the
            id of this process's run.
        gpus: the lease (exclusive right to named GPUs) of exactly `spec.gpus` GPUs; the caller releases it
            after closing the box.

    Raises:
        ConfigError: `gpus` contains more or fewer GPUs than `spec.gpus`.
        MissingError: Docker or the image is missing; the error contains the remedy.
        BoxStartError: the box did not start.
    """
    box = await start_box(spec, run=run, gpus=gpus)
    box.hand_out()
    return box


async def start_box(spec: BoxSpec, *, run: str = "", gpus: GpuLease | None = None) -> GuestBox:
    """Starts a box as `open_box` does and returns it, but does not start its time to live.

    The time to live starts when the caller calls `hand_out` of the box.
    """
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
