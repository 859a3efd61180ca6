"""Freed blocks of memory go back to the operating system at once, or stay, in a process that asks for it."""

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

CLEARED = """
import ctypes, resource, sys, threading

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
libc.prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: huge pages would be cleared in few steps
for mode in sys.argv[1:]:
    from air.train.model import heap
    getattr(heap, mode)()
SIZES = [size * 2**20 for size in (8, 48, 24, 80)]
PAGES = sum(SIZES) / resource.getpagesize()

def cleared():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [libc.malloc(size) for size in SIZES]
    for block, size in zip(blocks, SIZES):
        ctypes.memset(block, 1, size)
    for block in blocks:
        libc.free(block)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / PAGES

def again():
    cleared()
    print(cleared())

again()
thread = threading.Thread(target=again)
thread.start()
thread.join()
"""
"""Allocates blocks, writes them and frees them, twice in each of two threads. Prints the share of the pages
that the system cleared the second time."""
GLIBC = pytest.mark.skipif(
    not hasattr(__import__("ctypes").CDLL(None), "mallopt"), reason="not glibc"
)


@GLIBC
@pytest.mark.parametrize(
    ("modes", "kept"),
    [
        ([], False),
        (["keep_freed_memory"], True),
        (["keep_freed_memory", "return_large_blocks"], False),
    ],
)
def test_kept_memory_is_not_cleared_again(modes: list[str], kept: bool) -> None:
    shares = subprocess.check_output([sys.executable, "-c", CLEARED, *modes], text=True).split()
    assert len(shares) == 2
    for share in shares:
        assert float(share) < 0.05 if kept else float(share) > 0.5


@GLIBC
def test_freed_blocks_leave_the_process() -> None:
    kept = [
        float(subprocess.check_output([sys.executable, "-c", PROGRAM, how], text=True))
        for how in ("keep", "return")
    ]
    assert kept[0] > 0.8
    assert kept[1] < 0.2
