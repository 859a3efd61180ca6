"""Chooses the device on which the policy (the model that is trained) is stored and trained: one GPU, or the
CPU.

The training engine leases its GPU (reserves it for itself) with the same locks as boxes, the containers in
which agents' commands run. So it never uses a GPU that a box of any process has leased, and no box leases the
engine's GPU.
"""

from __future__ import annotations

import asyncio
import gc
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch

from air.env.config import ResearchEnvConfig
from air.errors import UsageError
from air.sandbox.pool import gpus
from air.sandbox.pool.gpu_leases import GpuLease, GpuPool, holders
from air.sandbox.pool.gpus import Gpu, GpuSelection, listed

_WHERE = "embedded.device"


@dataclass(frozen=True)
class Device:
    """The device on which the policy is stored and trained. `reason` says in words why it was chosen."""

    torch_device: torch.device
    reason: str
    gpu: Gpu | None = None
    """The chosen GPU. None if the device is the CPU."""
    lease: GpuLease | None = None
    """The exclusive right to use the GPU. It lasts until the process ends or `release` is called."""
    bfloat16: bool = False
    """Whether the device is a GPU with instructions for bfloat16, so that bfloat16 is the default type of
    weights."""

    def dtype(self, setting: str) -> torch.dtype:
        """Returns the data type of the policy's weights. `setting` is the value of `embedded.dtype` in the
        run file: the name of a torch type, or `auto`, which means bfloat16 on a GPU that supports it, else
        float32."""
        if setting != "auto":
            dtype: torch.dtype = getattr(torch, setting)
            return dtype
        return torch.bfloat16 if self.bfloat16 else torch.float32

    def release(self) -> None:
        """Ends the exclusive right to use the GPU (its lease), so that other processes can use this GPU. Does
        nothing for the CPU."""
        if self.lease is not None:
            self.lease.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __str__(self) -> str:
        name = "the CPU" if self.gpu is None else f"GPU {self.gpu}"
        return f"training: on {name} ({self.reason})"


def choose(
    setting: str,
    *,
    boxes: GpuSelection = (),
    trainer: Sequence[str] = (),
    inference: Gpu | None = None,
) -> Device:
    """Chooses the device on which the policy is trained, and leases it if it is a GPU.

    The device is the first allowed GPU (a result of `free_for_training`) that no process has leased.
    `inference` is the GPU that the run has leased for vLLM, or None; the policy shares this GPU only if no
    other GPU is free. `setting` is the value of `embedded.device` in the run file: `auto`, which means the
    CPU if there is no such GPU; `cpu`; `cuda`; or `cuda:N` with N as in `nvidia-smi`. `boxes` and `trainer`
    are the environments' settings `gpus` and `trainer_gpus`: names of GPUs in the form that
    `air.sandbox.pool.gpus.select` takes; empty: none named. Raises UsageError if `setting` is `cuda` or
    `cuda:N` and there is no such GPU, and if a named GPU does not exist.
    """
    if setting == "cpu":
        return Device(torch.device("cpu"), "as asked")
    problem = _problem_of_torch()
    problem_remedy = "install a build of torch for CUDA, or set it to cpu"
    candidates: list[Gpu] = []
    if not problem:
        inventory = gpus.inventory()
        candidates = free_for_training(
            setting, inventory, boxes=boxes, trainer=trainer, inference=inference
        )
        if not inventory:
            problem, problem_remedy = "this machine has no NVIDIA GPU", "set it to cpu, or to auto"
        elif not candidates:
            problem = f"boxes may use every GPU that is visible ({listed(inventory)})"
            problem_remedy = "name the boxes' GPUs in `gpus`, or the trainer's in `trainer_gpus`"
    reason = "as asked" if setting != "auto" else "free"
    for gpu in sorted(candidates, key=lambda gpu: gpu == inference):
        number = _torch_device(gpu)
        # The lease of vLLM's GPU belongs to vLLM, and lasts as long as the run.
        lease = GpuLease() if gpu == inference else lease_of(gpu)
        if lease is not None:
            return Device(number, reason, gpu, lease, has_bfloat16(_capability(number)))
        held = ", ".join(str(holder) for holder in holders(gpu).values()) or "a container"
        problem = f"GPU {gpu} is held by {held}"
        problem_remedy = "wait until it is free, choose another GPU, or set it to cpu"
    if setting == "auto":
        return Device(torch.device("cpu"), problem)
    raise UsageError(f"{setting} cannot be used: {problem}", where=_WHERE, remedy=problem_remedy)


def lease_of(gpu: Gpu) -> GpuLease | None:
    """Leases `gpu` for this process, and returns the lease; None if the GPU is not free. Can be called where
    an event loop runs, which it blocks."""
    with ThreadPoolExecutor(1) as thread:  # a thread of its own, in which no event loop runs
        return thread.submit(asyncio.run, GpuPool([gpu]).try_take(1)).result()


def choose_beside(envs: Iterable[Any], setting: str, *, inference: Gpu | None = None) -> Device:
    """Chooses the device on which the policy is trained, for a run with the environments `envs`: calls
    `choose` with the GPUs that the environments' settings name for boxes, the agents' containers (`gpus`),
    and for the policy (`trainer_gpus`). `setting` and `inference` are passed on."""
    envs = list(envs)
    research = [env for env in envs if isinstance(env, ResearchEnvConfig)]
    return choose(
        setting,
        boxes=gpus_of_boxes(envs),
        trainer=list(dict.fromkeys(g for env in research for g in env.trainer_gpus)),
        inference=inference,
    )


def gpus_of_boxes(envs: Iterable[Any]) -> GpuSelection:
    """Returns the GPUs that the boxes (containers for agents' commands) of the environments `envs` may use:
    the names of GPUs in all settings `gpus`, or `auto` (all GPUs) if one of the settings is `auto`."""
    boxes: list[str] = []
    for env in envs:
        if isinstance(env, ResearchEnvConfig):
            if env.gpus == "auto":
                return "auto"
            boxes += env.gpus
    return list(dict.fromkeys(boxes))


def give_back_memory() -> None:
    """Frees the GPU memory that torch keeps in this process although no tensor uses it, so that other
    processes can have it."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def cpu_instead(place: Device, reason: str) -> Device:
    """Releases the GPU of `place`, and returns the CPU as the policy's device instead. `reason` says in words
    why the CPU was chosen. Call this function only when no tensor on the GPU is in use any more."""
    if place.gpu is not None:
        give_back_memory()
    place.release()
    return Device(torch.device("cpu"), reason)


def free_for_training(
    setting: str,
    inventory: Sequence[Gpu],
    *,
    boxes: GpuSelection,
    trainer: Sequence[str],
    inference: Gpu | None = None,
) -> list[Gpu]:
    """Returns those GPUs of `inventory` on which the policy may be trained, the preferred one first.
    `setting` is `cuda:N` for one GPU. For any other value, the candidates are the GPUs that `trainer` names
    or, if it is empty, all visible ones. GPUs that `boxes` (agents' containers) may use are left out. If
    `boxes` is `auto` (all GPUs), named GPUs are returned nevertheless; if no GPU is named, one remains for
    boxes: the last one that is not `inference`, vLLM's GPU. If there is no such GPU, the result is empty."""
    if setting.startswith("cuda:"):
        wanted: GpuSelection = [setting.removeprefix("cuda:")]
    else:
        wanted = list(trainer) or "auto"
    if wanted == "auto" and not inventory:
        return []
    selection = gpus.select(wanted, inventory, where=_WHERE if not trainer else "trainer_gpus")
    if boxes == "auto":
        named = trainer or setting.startswith("cuda:")
        if named:
            return selection
        remaining = [gpu for gpu in selection if gpu != inference][-1:]
        return [gpu for gpu in selection if remaining and gpu not in remaining]
    of_boxes = gpus.select(boxes, inventory) if boxes else []
    return [gpu for gpu in selection if gpu not in of_boxes]


def _problem_of_torch() -> str:
    """Returns why torch cannot use any GPU, in words, or an empty string if torch can use one."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    return "" if torch.cuda.is_available() else "torch sees no GPU"


def has_bfloat16(capability: tuple[int, int]) -> bool:
    """Returns whether an NVIDIA GPU of this compute capability (major, minor) has instructions for bfloat16.
    Older GPUs emulate bfloat16, which is slow."""
    return capability >= (8, 0)


def emulates_bfloat16(cpuinfo: str) -> bool:
    """Returns whether a processor has no instructions for bfloat16, so that training in bfloat16 is slow on
    it. `cpuinfo` is the text of Linux's `/proc/cpuinfo`. Returns false if the text does not list the features
    of an x86 processor."""
    [flags, *_] = re.findall(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE) or [None]
    return flags is not None and not {"avx512_bf16", "amx_bf16"} & set(flags.split())


def bfloat16_warning(place: Device, dtype: torch.dtype, cpuinfo: str) -> str:
    """Returns a warning if the policy's weights, of type `dtype`, are in bfloat16 on a CPU that emulates it,
    otherwise an empty string. `cpuinfo` is the text of Linux's `/proc/cpuinfo`."""
    if place.gpu is not None or dtype != torch.bfloat16 or not emulates_bfloat16(cpuinfo):
        return ""
    return (
        "warning: this processor has no instructions for bfloat16 (avx512_bf16, amx_bf16), so training is "
        'slower than in float32 — set embedded.dtype = "float32"'
    )


def cpuinfo() -> str:
    """Returns the text of `/proc/cpuinfo`, or an empty string on systems other than Linux."""
    file = Path("/proc/cpuinfo")
    return file.read_text() if file.is_file() else ""


def _capability(device: torch.device) -> tuple[int, int]:
    """Returns the compute capability of a GPU. Reads properties only: `torch.cuda.is_bf16_supported` would
    test torch's current GPU, which may be another one."""
    found = torch.cuda.get_device_properties(device)
    return found.major, found.minor


def _torch_device(gpu: Gpu) -> torch.device:
    """Returns torch's device for a GPU, found by its UUID, since torch may number GPUs differently from
    `nvidia-smi`. Raises UsageError if torch does not see the GPU."""
    for number in range(torch.cuda.device_count()):
        uuid = str(torch.cuda.get_device_properties(number).uuid)
        if gpu.uuid in (uuid, f"GPU-{uuid}", f"MIG-{uuid}"):
            return torch.device("cuda", number)
    raise UsageError(
        f"torch does not see GPU {gpu}", where=_WHERE, remedy="check CUDA_VISIBLE_DEVICES"
    )
