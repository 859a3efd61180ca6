"""Says whether freed memory of this process returns to the operating system or is kept by the C library."""

from __future__ import annotations

import ctypes
from pathlib import Path

_SHARE = 0.5
"""`trim_heap` returns freed memory only if the physical memory of this process is larger than this number
times the memory that is available on the machine."""
_LARGE_BLOCK = 4 * 2**20
"""The size in bytes of the smallest blocks that glibc returns at once when they are freed, after
`return_large_blocks` was called."""
_HEAP_STEP = 64 * 2**20
"""The number of bytes by which glibc's heap grows beyond what is needed, after `keep_freed_memory` was
called."""
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -3, -4, -8
"""Options of glibc's function `mallopt`, as numbers."""
_DEFAULT_MMAP_MAX = 65536


def trim_heap() -> None:
    """Returns freed memory to the operating system, if memory may become short: if this process uses more
    physical memory than half (`_SHARE`) of the memory that is available on the machine.

    The C library glibc keeps freed blocks of up to 32 MiB for later allocations (after `keep_freed_memory`,
    all blocks), so the memory of deleted tensors still belongs to this process. This function does nothing
    while enough memory is available, because returned memory must be requested again later, and the system
    then clears each page. For a small model, this took a tenth of the time of an update. With other C
    libraries than glibc, the function never does anything.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return
    import torch  # the functions below need neither it nor the seconds of its import

    from air.train.devices.memory import available

    if _resident() > _SHARE * available(torch.device("cpu")):
        trim(0)


def keep_freed_memory() -> None:
    """From now on, makes this process keep freed memory for later allocations, except when `trim_heap`
    returns it.

    Otherwise glibc returns freed blocks of more than 32 MiB, and much of what lies at the end of its heap. An
    update that needs gigabytes then requests the same memory many times, and the system clears each page
    again. For a model of 50 million parameters, this took a tenth of the time of an update. Threads that
    allocate their first memory later share one heap, so that they can use the memory that others have freed.
    With other C libraries than glibc, the function does nothing.
    """
    _set(_M_TRIM_THRESHOLD, -1)  # never
    _set(_M_TOP_PAD, _HEAP_STEP)
    _set(_M_MMAP_MAX, 0)
    _set(_M_ARENA_MAX, 1)


def return_large_blocks() -> None:
    """From now on, makes this process return each freed block of at least `_LARGE_BLOCK` bytes to the
    operating system at once.

    Otherwise glibc places blocks of up to 32 MiB side by side in its heap. Between tensors that are freed and
    tensors that stay, holes remain that later tensors do not fit into. With gradient checkpointing, which
    keeps one tensor of each layer, these holes doubled the memory of an update. With other C libraries than
    glibc, the function does nothing.
    """
    _set(_M_MMAP_MAX, _DEFAULT_MMAP_MAX)
    _set(_M_TRIM_THRESHOLD, _LARGE_BLOCK)
    _set(_M_MMAP_THRESHOLD, _LARGE_BLOCK)


def _set(option: int, value: int) -> None:
    """Sets an option of glibc's memory allocation. Does nothing with other C libraries."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(option, value)


def _resident() -> int:
    """Returns the physical memory (resident set) of this process in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))
