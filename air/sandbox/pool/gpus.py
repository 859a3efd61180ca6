"""GPUs: which there are, and which a run means. The right to use them is in `air.sandbox.pool.gpu_leases`.

A GPU is known by its UUID. Indices are NVML's (as `nvidia-smi` counts them, by PCI bus), which
torch's need not be: `CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER` renumber CUDA's devices, and
NVML heeds neither. MIG devices are not looked for; `AIR_GPU_INVENTORY` may name them.
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
    """Its name for good: `GPU-…`."""
    name: str = ""
    """Its model; empty where the inventory is declared."""
    memory_mb: int = 0
    """Its memory in MiB; 0 where it is not known."""

    def __str__(self) -> str:
        return f"{self.index} = {self.uuid}"


def inventory() -> list[Gpu]:
    """The GPUs of this machine, by index: NVML's, or those that `AIR_GPU_INVENTORY` declares.

    It is declared as `INDEX=UUID,…` (`0=GPU-aaaa,1=GPU-bbbb`), or as `none`. Blocks: NVML may need
    seconds where no driver is kept loaded.

    Raises:
        ConfigError: `AIR_GPU_INVENTORY` cannot be read.
        MissingError: there is a driver, but it does not answer.
    """
    declared = os.environ.get(INVENTORY_ENV, "").strip()
    return _declared(declared) if declared else _nvml()


def _declared(text: str) -> list[Gpu]:
    found: dict[int, Gpu] = {}
    for part in () if text == "none" else text.split(","):
        index, _, uuid = (piece.strip() for piece in part.partition("="))
        known = {gpu.uuid for gpu in found.values()}
        if not index.isdecimal() or not _UUID.fullmatch(uuid):
            problem = f"{part.strip()!r} is not INDEX=UUID"
        elif int(index) in found or uuid in known:
            problem = f"{part.strip()!r} names a GPU again"
        else:
            found[int(index)] = Gpu(int(index), uuid)
            continue
        raise ConfigError(problem, where=INVENTORY_ENV, remedy="write 0=GPU-aaaa,1=GPU-bbbb")
    return [found[index] for index in sorted(found)]


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
    except nvml.NVMLError as error:  # one that fell off the bus; the others work on
        _LOG.warning("GPU %d is left out, it does not answer: %s", index, error)
        return None
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle).total >> 20
    except nvml.NVMLError:  # not supported where it shares the machine's memory
        memory = 0
    return Gpu(index, uuid, name, memory)


def select(wanted: Wanted, found: Sequence[Gpu], *, where: str = "gpus") -> list[Gpu]:
    """The GPUs that `wanted` means.

    Args:
        wanted: indices as NVML counts, UUIDs or beginnings of them that fit one GPU alone; or
            `auto`: all, or those that `CUDA_VISIBLE_DEVICES` leaves, its numbers read as indices.
        found: what there is.
        where: the key that is named in errors.

    Raises:
        ConfigError: one is not there, fits several, or is named twice; lists what is there.
    """
    if wanted == "auto":
        chosen = _visible(found)
        if not chosen:
            hidden = "CUDA_VISIBLE_DEVICES leaves none of this machine's GPUs"
            raise ConfigError(hidden if found else "this machine has no NVIDIA GPU", where=where)
        return chosen
    if isinstance(wanted, str):
        raise ConfigError(f"{wanted!r} is no list", where=where, remedy='write "auto" or ["0"]')
    chosen = [_one(name, found, where) for name in wanted]
    if len(set(chosen)) < len(chosen):
        raise ConfigError("names a GPU twice", where=where, remedy=f"there are: {listed(found)}")
    return chosen


def _one(name: str, found: Sequence[Gpu], where: str) -> Gpu:
    fits = [gpu for gpu in found if name == str(gpu.index) or name == gpu.uuid]
    if not fits and name.startswith(("GPU-", "MIG-")) and len(name) > 4:
        fits = [gpu for gpu in found if gpu.uuid.startswith(name)]
    if len(fits) == 1:
        return fits[0]
    problem = f"{name!r} fits several GPUs" if fits else f"there is no GPU {name!r}"
    raise ConfigError(problem, where=where, remedy=f"there are: {listed(found)}")


def _visible(found: Sequence[Gpu]) -> list[Gpu]:
    """What `CUDA_VISIBLE_DEVICES` leaves; as in CUDA, what follows an unknown entry is hidden."""
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return list(found)
    chosen: list[Gpu] = []
    for name in text.split(","):
        try:
            chosen.append(_one(name.strip(), found, "CUDA_VISIBLE_DEVICES"))
        except ConfigError:
            break
    return list(dict.fromkeys(chosen))


def listed(found: Iterable[Gpu]) -> str:
    """GPUs as one line."""
    return ", ".join(map(str, found)) or "none"


def plan(boxes: Wanted, *, trainer: Sequence[str] = (), inference: Sequence[str] = ()) -> list[Gpu]:
    """The GPUs of this machine that boxes get: none of the trainer's nor of the inference server's.
    `auto` leaves those out; blocks as `inventory` does.

    Raises:
        ConfigError: boxes name one of theirs, and the plan is printed; or see `select`, `inventory`.
        MissingError: see `inventory`.
    """
    found = inventory()
    own = {
        "trainer": select(trainer, found, where="trainer_gpus"),
        "inference server": select(inference, found, where="inference_gpus"),
    }
    chosen = select(boxes, found)
    taken = {gpu for gpus in own.values() for gpu in gpus}
    left = [gpu for gpu in chosen if gpu not in taken]
    if left and (boxes == "auto" or len(left) == len(chosen)):
        return left
    twice = [gpu for gpu in chosen if gpu in taken]
    shown = "; ".join(f"{who}: {listed(gpus)}" for who, gpus in {"boxes": chosen, **own}.items())
    raise ConfigError(
        f"the boxes' GPU {', '.join(str(gpu.index) for gpu in twice)} is in use by the run itself "
        f"({shown})",
        where="gpus",
        remedy="give the boxes GPUs of their own",
    )
