"""Returns freed memory of this process to the operating system, because the C library would keep it."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

from air.train.devices.memory import available

_SHARE = 0.25
"""`trim_heap` returns freed memory only if the physical memory of this process is larger than this number
times the memory that is available on the machine."""


_LARGE_BLOCK = 4 * 2**20
"""The size in bytes of the smallest blocks that glibc returns at once when they are freed, after
`return_large_blocks` was called."""
_M_MMAP_THRESHOLD = -3
"""The option `M_MMAP_THRESHOLD` of glibc's function `mallopt`, as a number."""


def trim_heap() -> None:
    """Returns freed memory to the operating system, if memory may become short: if this process uses more
    physical memory than a quarter (`_SHARE`) of the memory that is available on the machine.

    The C library glibc keeps freed blocks of up to 32 MiB for later allocations, so the memory of deleted
    tensors still belongs to this process. This function does nothing while enough memory is available,
    because returned memory must be requested again later, and the system then clears each page. For a small
    model, this took a tenth of the time of an update. With other C libraries than glibc, the function never
    does anything.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None and _resident() > _SHARE * available(torch.device("cpu")):
        trim(0)


def return_large_blocks() -> None:
    """From now on, makes this process return each freed block of at least `_LARGE_BLOCK` bytes to the
    operating system at once.

    Otherwise glibc places blocks of up to 32 MiB side by side in its heap. Between tensors that are freed and
    tensors that stay, holes remain that later tensors do not fit into. With gradient checkpointing, which
    keeps one tensor of each layer, these holes doubled the memory of an update. With other C libraries than
    glibc, the function does nothing.
    """
    option = getattr(ctypes.CDLL(None), "mallopt", None)
    if option is not None:
        option(_M_MMAP_THRESHOLD, _LARGE_BLOCK)


def _resident() -> int:
    """Returns the physical memory (resident set) of this process in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))
