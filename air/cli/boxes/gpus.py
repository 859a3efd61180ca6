"""Implements the command `air gpus`, which lists the GPUs of this machine. For each GPU, it shows the
processes of air that hold a lease on it (the right to use it), and the containers of air that use it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from air.cli.output import print_columns

if TYPE_CHECKING:
    from air.sandbox.pool.gpus import Gpu

HELP = "list the GPUs, their holders, and the containers that use them"
EXAMPLES = ("air gpus",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Does nothing, because `air gpus` has no flags."""


def run(args: argparse.Namespace) -> int:
    from air.sandbox.pool import gpus

    inventory = gpus.inventory()
    if not inventory:
        print("no NVIDIA GPU on this machine (AIR_GPU_INVENTORY can declare some)")
        return 0
    rows: list[tuple[str, ...]] = [
        ("INDEX", "UUID", "NAME", "MEMORY", "SLOTS", "HELD BY", "CONTAINERS")
    ]
    containers, message = _containers(inventory)
    for gpu in inventory:
        rows += _rows(gpu, containers.get(gpu.uuid, []))
    print_columns(rows)
    if message:
        print(message, file=sys.stderr)
    return 0


def _rows(gpu: Gpu, containers: Sequence[str]) -> list[tuple[str, ...]]:
    """Returns the rows of one GPU in the table of `air gpus`. Two columns list the processes that hold a
    lease on the GPU (the right to use it) and the containers that use it; each row has at most one process
    and one container. `containers` are the names of these containers."""
    from air.sandbox.pool import gpu_leases

    holders = gpu_leases.holders(gpu)
    slots = "free" if not holders else "whole" if 0 in holders else f"{len(holders)} shared"
    memory = f"{gpu.memory_mb} MiB" if gpu.memory_mb else "-"
    first = (str(gpu.index), gpu.uuid, gpu.name or "-", memory, slots)
    who = [str(holder) for holder in holders.values()]
    count = max(1, len(who), len(containers))
    return [
        (
            *(first if line == 0 else ("",) * len(first)),
            who[line] if line < len(who) else "-" if line == 0 else "",
            containers[line] if line < len(containers) else "-" if line == 0 else "",
        )
        for line in range(count)
    ]


def _containers(inventory: Sequence[Gpu]) -> tuple[dict[str, list[str]], str]:
    """Returns a pair: a dict from GPU UUID to the names of air's containers that use this GPU, and a message
    for the user. If the container engine cannot be reached, the dict is empty, and the message says why if
    `DOCKER_HOST` is set. In all other cases, the message is empty."""
    from air import paths
    from air.errors import MissingError
    from air.sandbox.contract import ownership
    from air.sandbox.docker import engine
    from air.sandbox.pool import gpu_leases

    try:
        labelled = engine.containers_of_air(ownership.GPU_LABEL)
    except MissingError as error:
        named = os.environ.get("DOCKER_HOST")
        return {}, paths.runnable(f"containers cannot be listed: {error}") if named else ""
    names: dict[str, list[str]] = {}
    for container in labelled:
        for gpu in inventory:
            if gpu_leases.users(gpu.uuid, [container]):
                name = f"{container['Names'][0].lstrip('/')} ({container['State']})"
                names.setdefault(gpu.uuid, []).append(name)
    return names, ""
