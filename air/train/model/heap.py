"""Gives memory that this process has freed back to the operating system."""

from __future__ import annotations

import ctypes


def trim_heap() -> None:
    """Gives freed memory back to the operating system. glibc keeps freed blocks of up to 32 MiB for later, so
    tensors that are gone still count as memory of this process. Other C libraries have no such call; then
    nothing is done."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
