"""The guard of a server: everything that its command started ends with the owner."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from air.train.serving.vllm import die_with_parent

SECONDS = 120.0
"""How long anything here may take."""
STUBBORN = """
import os, signal, subprocess, sys, time
inner = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
inner += "print(1, flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", inner], stdout=subprocess.PIPE, start_new_session=True)
child.stdout.readline()
open(sys.argv[1] + ".new", "w").write(f"{os.getpid()} {child.pid}")
os.rename(sys.argv[1] + ".new", sys.argv[1])
sys.exit(int(sys.argv[2])) if sys.argv[2] else time.sleep(600)
"""
"""Starts a process in a session of its own that heeds no SIGTERM; then ends with a code, or waits."""
OWNER = """
import subprocess, sys, time
subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE)
time.sleep(600)
"""


def guarded(folder: Path, pids: Path, code: str = "") -> list[str]:
    argv = [sys.executable, die_with_parent.__file__, "0.3", str(folder)]
    return [*argv, sys.executable, "-c", STUBBORN, str(pids), code]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "weights"
    made.mkdir()
    return made


def started(pids: Path) -> list[int]:
    """The process ids that the command wrote, once it has."""
    deadline = time.monotonic() + SECONDS
    while not pids.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return [int(pid) for pid in pids.read_text().split()]


def gone(pids: list[int]) -> bool:
    """Whether all have ended, within two minutes."""
    deadline = time.monotonic() + SECONDS
    while any(alive(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_all_ends_and_the_folder_goes_when_the_owner_is_killed(
    folder: Path, tmp_path: Path
) -> None:
    argv = [sys.executable, "-c", OWNER, *guarded(folder, tmp_path / "pids")]
    with subprocess.Popen(argv) as owner:
        try:
            pids = started(tmp_path / "pids")
            assert all(alive(pid) for pid in pids)
            assert folder.is_dir()
        finally:
            owner.kill()
    assert gone(pids)
    deadline = time.monotonic() + SECONDS
    while folder.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_sigterm_ends_all_and_keeps_the_folder(folder: Path, tmp_path: Path) -> None:
    with subprocess.Popen(guarded(folder, tmp_path / "pids"), stdin=subprocess.PIPE) as process:
        pids = started(tmp_path / "pids")
        process.terminate()
        assert process.wait(SECONDS) == 0
    assert gone(pids)
    assert folder.is_dir()


def test_a_command_that_ends_takes_along_what_it_started(folder: Path, tmp_path: Path) -> None:
    argv = guarded(folder, tmp_path / "pids", "7")
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as process:
        assert process.wait(SECONDS) == 7
    assert gone(started(tmp_path / "pids"))
    assert folder.is_dir()
