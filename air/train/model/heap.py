"""Gives memory that this process has freed back to the operating system."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

from air.train.devices.memory import available

_SHARE = 0.25
"""Freed memory is given back if this process uses more than this share of the available memory."""


def trim_heap() -> None:
    """Gives freed memory back to the operating system, if memory may become short.

    The C library glibc keeps freed blocks of up to 32 MiB for later, so deleted tensors still count as memory
    of this process. Memory is not always given back, because getting it again costs time: the system clears
    each page, which took a tenth of an update of a small model. Other C libraries have no such call; with
    them, this function does nothing.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None and _resident() > _SHARE * available(torch.device("cpu")):
        trim(0)


def _resident() -> int:
    """Returns the bytes of physical memory that this process uses."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))
