"""Boxes: isolated places to run commands. `open_box` starts one box; a box pool
(`air.sandbox.pool.box_pool.Pool`) manages many.

Importing this package is cheap: the module of a provider (a kind of box: `docker` or `process`) is imported
when its first box starts.
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
"""The providers, which start the two kinds of boxes: name -> (module, class). The class method `open(spec, *,
run, gpus)` of the class starts a box and returns it; its arguments are those of `open_box`."""


async def open_box(spec: BoxSpec, *, run: str = "", gpus: GpuLease | None = None) -> Box:
    """Starts a box and returns it; its time to live begins. Use it with `async with`, which closes the box.

    `run` is the id of the run of air that starts the box, for the box's labels (empty: the run of this
    process). `gpus` is a lease (the exclusive right to use certain GPUs) of exactly `spec.gpus` GPUs, else
    ConfigError is raised. The caller releases the lease after closing the box. Raises MissingError if Docker
    or the image is missing, BoxStartError if the box does not start.
    """
    box = await start_box(spec, run=run, gpus=gpus)
    box.hand_out()
    return box


async def start_box(spec: BoxSpec, *, run: str = "", gpus: GpuLease | None = None) -> GuestBox:
    """Starts a box and returns it. Unlike after `open_box`, the box's time to live does not begin yet;
    `GuestBox.hand_out` begins it. `run` is the id of the run of air, for the box's labels, and `gpus` a lease
    of exactly `spec.gpus` GPUs. Raises ConfigError if their number is another one, MissingError if Docker or
    the image is missing, and BoxStartError if the box does not start.

    The box pool uses this function to start spare boxes before a caller needs them.
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
    box: GuestBox = await provider.open(spec, run=run, gpus=gpus)
    box.gpus = gpus.uuids
    run = run or ownership.run_id()
    box.command_log.start(
        spec, run=run, owner=ownership.owner(), workspace=box.seen_from_host or box.workspace
    )
    return box
