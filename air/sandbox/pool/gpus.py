"""Detects the GPUs of this machine, and selects the GPUs that a run's configuration names.

The UUID identifies a GPU. Indices are those of NVML (NVIDIA's management library) and of `nvidia-smi`; torch
may number the GPUs differently. MIG devices (parts of a GPU) are not detected, but `AIR_GPU_INVENTORY` can
name them.
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
GpuSelection = Literal["auto"] | Sequence[str]


@dataclass(frozen=True)
class Gpu:
    """One GPU of this machine."""

    index: int
    """The index of the GPU in NVML, as `nvidia-smi` shows it."""
    uuid: str
    """The permanent id of the GPU: `GPU-…`, or `MIG-…` for a part of a GPU."""
    name: str = ""
    """The product name of the GPU. Empty if the GPU comes from `AIR_GPU_INVENTORY`."""
    memory_mb: int = 0
    """The memory of the GPU in MiB; 0 if unknown."""

    def __str__(self) -> str:
        return f"{self.index} = {self.uuid}"


def inventory() -> list[Gpu]:
    """Returns the GPUs of this machine, sorted by index. Detection by NVML may block for seconds.

    The environment variable `AIR_GPU_INVENTORY` can list the GPUs instead, as `0=GPU-aaaa,1=GPU-bbbb` or
    `none`. Raises ConfigError if the variable's value is malformed, MissingError if the NVIDIA driver does
    not answer.
    """
    declaration = os.environ.get(INVENTORY_ENV, "").strip()
    return _declared(declaration) if declaration else _nvml()


def _declared(text: str) -> list[Gpu]:
    gpus: dict[int, Gpu] = {}
    for part in () if text == "none" else text.split(","):
        index, _, uuid = (piece.strip() for piece in part.partition("="))
        uuids = {gpu.uuid for gpu in gpus.values()}
        if not index.isdecimal() or not _UUID.fullmatch(uuid):
            problem = f"{part.strip()!r} is not INDEX=UUID"
        elif int(index) in gpus or uuid in uuids:
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
    except nvml.NVMLError as error:  # this GPU is lost (fell off the bus); the others still work
        _LOG.warning("GPU %d is ignored: it does not answer: %s", index, error)
        return None
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle).total >> 20
    except nvml.NVMLError:  # not supported if the GPU shares the machine's memory
        memory = 0
    return Gpu(index, uuid, name, memory)


def select(wanted: GpuSelection, gpus: Sequence[Gpu], *, where: str = "gpus") -> list[Gpu]:
    """Returns the GPUs in `gpus` that `wanted` selects. `wanted` is the text `auto` or a list of names. A
    name is an index of NVML (NVIDIA's management library) as text, a UUID, or a beginning of a UUID that fits
    only one GPU.

    `auto` selects all GPUs that the environment variable `CUDA_VISIBLE_DEVICES` leaves visible; numbers in
    this variable count as NVML indices. Raises ConfigError, which names the setting `where`, if a GPU does
    not exist or is named twice, or if a name fits several GPUs.
    """
    if wanted == "auto":
        selection = _visible(gpus)
        if not selection:
            problem = "CUDA_VISIBLE_DEVICES leaves none of this machine's GPUs"
            raise ConfigError(problem if gpus else "this machine has no NVIDIA GPU", where=where)
        return selection
    if isinstance(wanted, str):
        raise ConfigError(f"{wanted!r} is not a list", where=where, remedy='write "auto" or ["0"]')
    selection = [_one(name, gpus, where) for name in wanted]
    if len(set(selection)) < len(selection):
        raise ConfigError("names a GPU twice", where=where, remedy=f"there are: {listed(gpus)}")
    return selection


def _one(name: str, gpus: Sequence[Gpu], where: str) -> Gpu:
    fits = [gpu for gpu in gpus if name == str(gpu.index) or name == gpu.uuid]
    if not fits and name.startswith(("GPU-", "MIG-")) and len(name) > 4:
        fits = [gpu for gpu in gpus if gpu.uuid.startswith(name)]
    if len(fits) == 1:
        return fits[0]
    problem = f"{name!r} fits several GPUs" if fits else f"there is no GPU {name!r}"
    raise ConfigError(problem, where=where, remedy=f"there are: {listed(gpus)}")


def _visible(gpus: Sequence[Gpu]) -> list[Gpu]:
    """Returns the GPUs that `CUDA_VISIBLE_DEVICES` names, or all GPUs if the variable is not set.

    As in CUDA, the first unknown entry of the variable and all entries after it are ignored.
    """
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return list(gpus)
    selection: list[Gpu] = []
    for name in text.split(","):
        try:
            selection.append(_one(name.strip(), gpus, "CUDA_VISIBLE_DEVICES"))
        except ConfigError:
            break
    return list(dict.fromkeys(selection))


def listed(gpus: Iterable[Gpu]) -> str:
    """Returns one line of text that lists `gpus` as `0 = GPU-aaaa, 1 = GPU-bbbb`, for messages to the user;
    `none` if there are no GPUs."""
    return ", ".join(map(str, gpus)) or "none"


def plan(
    boxes: GpuSelection, *, trainer: Sequence[str] = (), inference: Sequence[str] = ()
) -> list[Gpu]:
    """Detects this machine's GPUs, and returns those that boxes (isolated places for commands, such as
    containers) may use. Blocks during the detection.

    `boxes`, `trainer` and `inference` name the GPUs of the boxes, of the trainer and of the inference server:
    a list of NVML indices, UUIDs or beginnings of UUIDs, as texts. If `boxes` is the text `auto`, boxes get
    all GPUs that `CUDA_VISIBLE_DEVICES` leaves visible, except those of the trainer and the inference server.
    Raises ConfigError if `boxes` names a GPU of the trainer or the inference server, or if no GPU remains.
    Also raises the errors of `select` and `inventory`.
    """
    gpus = inventory()
    reservations = {
        "trainer": select(trainer, gpus, where="trainer_gpus"),
        "inference server": select(inference, gpus, where="inference_gpus"),
    }
    selection = select(boxes, gpus)
    reserved = {gpu for group in reservations.values() for gpu in group}
    free = [gpu for gpu in selection if gpu not in reserved]
    if free and (boxes == "auto" or len(free) == len(selection)):
        return free
    conflicts = [gpu for gpu in selection if gpu in reserved]
    groups = {"boxes": selection, **reservations}
    users = "; ".join(f"{user}: {listed(group)}" for user, group in groups.items())
    raise ConfigError(
        f"the boxes' GPU {', '.join(str(gpu.index) for gpu in conflicts)} is in use by the run itself "
        f"({users})",
        where="gpus",
        remedy="give the boxes GPUs of their own",
    )
