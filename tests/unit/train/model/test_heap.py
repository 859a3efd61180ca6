"""Freed blocks of memory go back to the operating system at once, in a process that asks for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, sys
from pathlib import Path

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
if sys.argv[1] == "return":
    from air.train.model.heap import return_large_blocks
    return_large_blocks()

def block(size):
    found = libc.malloc(size)
    ctypes.memset(found, 1, size)
    return found

def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))

LARGE, COUNT = 16 * 2**20, 20
libc.free(block(LARGE))  # from now on, glibc takes blocks of this size from its heap
before = resident()
blocks = []
for number in range(COUNT):
    blocks.append(block(LARGE))
    block(1024)  # it stays, and separates two large ones
for one in blocks:
    libc.free(one)
print((resident() - before) / (LARGE * COUNT))
"""


@pytest.mark.skipif(not hasattr(__import__("ctypes").CDLL(None), "mallopt"), reason="not glibc")
def test_freed_blocks_leave_the_process() -> None:
    kept = [
        float(subprocess.check_output([sys.executable, "-c", PROGRAM, how], text=True))
        for how in ("keep", "return")
    ]
    assert kept[0] > 0.8
    assert kept[1] < 0.2
