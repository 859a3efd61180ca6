"""Returns freed memory of this process to the operating system."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

from air.train.devices.memory import available

_SHARE = 0.25
"""The threshold of `trim_heap`: it returns freed memory only if this process uses more physical memory than
this number times the memory that is available on the machine."""


def trim_heap() -> None:
    """Returns freed memory to the operating system, if memory may become short (see `_SHARE`).

    The C library glibc keeps freed blocks of up to 32 MiB for later allocations, so the memory of deleted
    tensors still belongs to this process. This function does not return memory in every case, because a later
    allocation then costs time: the system must clear each page, which took a tenth of the time of a small
    model's update. With other C libraries than glibc, this function does nothing.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None and _resident() > _SHARE * available(torch.device("cpu")):
        trim(0)


def _resident() -> int:
    """Returns the physical memory (resident set) of this process in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))
