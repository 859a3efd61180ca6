"""Who counts as dead, and what counts as left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest

from air.sandbox.contract import ownership
from air.sandbox.ops import orphans


def _dead_pid() -> int:
    """A pid that was ours a moment ago and is nobody's now."""
    return int(subprocess.check_output([sys.executable, "-c", "import os; print(os.getpid())"]))


def test_this_process_is_alive_and_others_are_only_dead_for_certain() -> None:
    host, pid, start = ownership.owner().rsplit(":", 2)
    assert int(pid) == os.getpid()
    assert not ownership.is_dead(ownership.owner())
    assert ownership.is_dead(f"{host}:{pid}:{int(start) - 1}")
    assert ownership.is_dead(f"{host}:{_dead_pid()}:{start}")
    assert not ownership.is_dead(f"other/0/0:{_dead_pid()}:{start}")
    for nonsense in ("", "x", f"{host}:x:y", f"{host}:{pid}"):
        assert not ownership.is_dead(nonsense)


def test_left_behind() -> None:
    now, host = time.time(), ownership.owner().rsplit(":", 2)[0]
    ours = {
        ownership.OWNER_LABEL: ownership.owner(),
        ownership.EXPIRES_LABEL: ownership.expires(60),
    }
    dead = ours | {ownership.OWNER_LABEL: f"{host}:{_dead_pid()}:1"}
    assert not ownership.is_left_behind(ours, now=now)
    assert not ownership.is_left_behind(ours, now=now + 60 + ownership.WARM_SECONDS - 2)
    assert ownership.is_left_behind(ours, now=now + 60 + ownership.WARM_SECONDS + 2)
    assert ownership.is_left_behind(dead, now=now)
    assert not ownership.is_left_behind({}, now=now)
    assert not ownership.is_left_behind(
        {ownership.OWNER_LABEL: dead[ownership.OWNER_LABEL]}, now=now
    )
    assert not ownership.is_left_behind(ours | {ownership.EXPIRES_LABEL: "soon"}, now=now)


NEST = """
import os
for _ in range(1100):
    os.mkdir("d")
    os.chdir("d")
"""
"""More folders in each other than Python's `shutil.rmtree` removes."""


def test_folders_of_the_dead_are_removed(tmp_path: Path) -> None:
    """In a folder for temporary files of its own, where nobody else collects."""
    start = ownership.owner().rsplit(":", 2)[2]
    here = ownership.folder_prefix().removeprefix(ownership.FOLDER_PREFIX).partition("-")[0]
    dead = tmp_path / f"{ownership.FOLDER_PREFIX}{here}-{_dead_pid()}-{start}-x"
    elsewhere = tmp_path / f"{ownership.FOLDER_PREFIX}{int(here) + 1}-{_dead_pid()}-{start}-x"
    alive = tmp_path / f"{ownership.folder_prefix()}x"
    foreign = tmp_path / f"{ownership.FOLDER_PREFIX}x"
    for folder in (dead, elsewhere, alive, foreign):
        (folder / "workspace").mkdir(parents=True)
    subprocess.run([sys.executable, "-c", NEST], cwd=dead / "workspace", check=True)
    program = "from air.sandbox.ops import orphans; print(*orphans.collect_folders())"
    env = os.environ | {"TMPDIR": str(tmp_path)}
    collecting = [sys.executable, "-c", program]
    done = subprocess.run(collecting, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(dead)]
    # Whoever owns `elsewhere` may live in its own pid namespace.
    assert set(tmp_path.iterdir()) == {elsewhere, alive, foreign}


def test_only_names_of_ours_have_an_owner() -> None:
    host, pid, start = ownership.owner().rsplit(":", 2)
    assert ownership.folder_owner(ownership.folder_prefix() + "0123") == f"{host}:{pid}:{start}"
    for name in (
        "air-box-x",
        "air-box-",
        "air-box-1-x-y",
        "air-box-x-1-y",
        "air-box-1-2-3-",
        "air-box-1-2-x-y",
        f"x{pid}-{start}-y",
        "",
    ):
        assert ownership.folder_owner(name) == ""


SWOLLEN = """
import ctypes, mmap, struct, sys
libc = ctypes.CDLL(None)
libc.sbrk.restype = ctypes.c_void_p
size = 1 << 28
area = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
start = ctypes.addressof(ctypes.c_char.from_buffer(area))
fields = [int(field) for field in open("/proc/self/stat").read().rpartition(")")[2].split()[1:]]
code, data, brk, stack, arguments = fields[22:24], fields[41:43], fields[43], fields[24], fields[44:46]
layout = (*code, *data, brk, libc.sbrk(0), stack, *arguments, start, start + size, 0, 0, 2**32 - 1)
PR_SET_MM, MAP = 35, 14
print(libc.prctl(PR_SET_MM, MAP, struct.pack("12Q2I", *layout), 104, 0), flush=True)
sys.stdin.read()
"""
"""Declares 256 MiB of its memory to be its environment."""


def test_a_process_with_a_huge_environment_is_not_read_whole() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", SWOLLEN], stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        if process.stdout.readline() != b"0\n":
            process.communicate()
            pytest.skip("the kernel lets no process say where its environment lies")
        tracemalloc.start()
        try:
            orphans.processes()
            assert tracemalloc.get_traced_memory()[1] < 64 << 20
        finally:
            tracemalloc.stop()
            process.communicate()
