"""The GPUs of this machine, and which of them a run means. `air.sandbox.pool.gpu_leases` lends them.

A GPU is known by its UUID. Indices are NVML's (as `nvidia-smi` counts them, by PCI bus), which may differ
from torch's: `CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER` renumber CUDA's devices, and NVML ignores
both. MIG devices are not detected; `AIR_GPU_INVENTORY` may name them.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from air.errors import ConfigError, MissingError

INVENTORY_ENV = "AIR_GPU_INVENTORY"
_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z-]{1,80}")
_LOG = logging.getLogger(__name__)
Wanted = Literal["auto"] | Sequence[str]


@dataclass(frozen=True)
class Gpu:
    """One GPU of this machine."""

    index: int
    """NVML's index."""
    uuid: str
    """Its permanent name: `GPU-…`."""
    name: str = ""
    """Its model; empty if the inventory is declared."""
    memory_mb: int = 0
    """Its memory in MiB; 0 if unknown."""

    def __str__(self) -> str:
        return f"{self.index} = {self.uuid}"


def inventory() -> list[Gpu]:
    """The GPUs of this machine, by index: NVML's, or those that `AIR_GPU_INVENTORY` declares.

    A declaration is `INDEX=UUID,…` (`0=GPU-aaaa,1=GPU-bbbb`), or `none`. Blocks: NVML may need seconds
    to load the driver.

    Raises:
        ConfigError: `AIR_GPU_INVENTORY` cannot be read.
        MissingError: there is a driver, but it does not answer.
    """
    declared = os.environ.get(INVENTORY_ENV, "").strip()
    return _declared(declared) if declared else _nvml()


def _declared(text: str) -> list[Gpu]:
    gpus: dict[int, Gpu] = {}
    for part in () if text == "none" else text.split(","):
        index, _, uuid = (piece.strip() for piece in part.partition("="))
        known = {gpu.uuid for gpu in gpus.values()}
        if not index.isdecimal() or not _UUID.fullmatch(uuid):
            problem = f"{part.strip()!r} is not INDEX=UUID"
        elif int(index) in gpus or uuid in known:
            problem = f"{part.strip()!r} names a GPU again"
        else:
            gpus[int(index)] = Gpu(int(index), uuid)
            continue
        raise ConfigError(problem, where=INVENTORY_ENV, remedy="write 0=GPU-aaaa,1=GPU-bbbb")
    return [gpus[index] for index in sorted(gpus)]


def _nvml() -> list[Gpu]:
    import pynvml

    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        return []
    except pynvml.NVMLError as error:
        raise MissingError(
            f"the NVIDIA driver does not answer: {error}", remedy="`nvidia-smi` must work first"
        ) from error
    try:
        return [gpu for i in range(pynvml.nvmlDeviceGetCount()) if (gpu := _described(pynvml, i))]
    finally:
        pynvml.nvmlShutdown()


def _described(nvml: Any, index: int) -> Gpu | None:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid, name = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
    except nvml.NVMLError as error:  # this GPU fell off the bus; the others still work
        _LOG.warning("GPU %d is ignored: it does not answer: %s", index, error)
        return None
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle).total >> 20
    except nvml.NVMLError:  # not supported if it shares the machine's memory
        memory = 0
    return Gpu(index, uuid, name, memory)


def select(wanted: Wanted, gpus: Sequence[Gpu], *, where: str = "gpus") -> list[Gpu]:
    """The GPUs that `wanted` means.

    Args:
        wanted: NVML indices, UUIDs, or beginnings of UUIDs that fit exactly one GPU; or `auto`: all
            GPUs that `CUDA_VISIBLE_DEVICES` leaves visible, its numbers read as indices.
        gpus: the GPUs of this machine.
        where: the configuration key, for errors.

    Raises:
        ConfigError: a GPU does not exist, a name fits several, or a GPU is named twice; lists all GPUs.
    """
    if wanted == "auto":
        chosen = _visible(gpus)
        if not chosen:
            hidden = "CUDA_VISIBLE_DEVICES leaves none of this machine's GPUs"
            raise ConfigError(hidden if gpus else "this machine has no NVIDIA GPU", where=where)
        return chosen
    if isinstance(wanted, str):
        raise ConfigError(f"{wanted!r} is not a list", where=where, remedy='write "auto" or ["0"]')
    chosen = [_one(name, gpus, where) for name in wanted]
    if len(set(chosen)) < len(chosen):
        raise ConfigError("names a GPU twice", where=where, remedy=f"there are: {listed(gpus)}")
    return chosen


def _one(name: str, gpus: Sequence[Gpu], where: str) -> Gpu:
    fits = [gpu for gpu in gpus if name == str(gpu.index) or name == gpu.uuid]
    if not fits and name.startswith(("GPU-", "MIG-")) and len(name) > 4:
        fits = [gpu for gpu in gpus if gpu.uuid.startswith(name)]
    if len(fits) == 1:
        return fits[0]
    problem = f"{name!r} fits several GPUs" if fits else f"there is no GPU {name!r}"
    raise ConfigError(problem, where=where, remedy=f"there are: {listed(gpus)}")


def _visible(gpus: Sequence[Gpu]) -> list[Gpu]:
    """The GPUs that `CUDA_VISIBLE_DEVICES` leaves; as in CUDA, an unknown entry hides all after it."""
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return list(gpus)
    chosen: list[Gpu] = []
    for name in text.split(","):
        try:
            chosen.append(_one(name.strip(), gpus, "CUDA_VISIBLE_DEVICES"))
        except ConfigError:
            break
    return list(dict.fromkeys(chosen))


def listed(gpus: Iterable[Gpu]) -> str:
    """GPUs as one line, for messages."""
    return ", ".join(map(str, gpus)) or "none"


def plan(boxes: Wanted, *, trainer: Sequence[str] = (), inference: Sequence[str] = ()) -> list[Gpu]:
    """The GPUs that boxes get: none of the trainer's nor of the inference server's.

    `auto` leaves those out. Blocks as `inventory` does.

    Raises:
        ConfigError: `boxes` names a GPU of the trainer or the server; also see `select`, `inventory`.
        MissingError: see `inventory`.
    """
    gpus = inventory()
    own = {
        "trainer": select(trainer, gpus, where="trainer_gpus"),
        "inference server": select(inference, gpus, where="inference_gpus"),
    }
    chosen = select(boxes, gpus)
    taken = {gpu for group in own.values() for gpu in group}
    free = [gpu for gpu in chosen if gpu not in taken]
    if free and (boxes == "auto" or len(free) == len(chosen)):
        return free
    twice = [gpu for gpu in chosen if gpu in taken]
    users = "; ".join(
        f"{who}: {listed(own_gpus)}" for who, own_gpus in {"boxes": chosen, **own}.items()
    )
    raise ConfigError(
        f"the boxes' GPU {', '.join(str(gpu.index) for gpu in twice)} is in use by the run itself "
        f"({users})",
        where="gpus",
        remedy="give the boxes GPUs of their own",
    )
