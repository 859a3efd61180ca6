"""The folder of a run: one process at a time in it, and a config that is there whole."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from air.errors import UsageError
from air.train.loop.run_folder import locked, write_config

HOLD = """
import sys
from pathlib import Path
from air.train.loop.run_folder import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""

TAKE_TURNS = """
import sys
from pathlib import Path
from air.errors import UsageError
from air.train.loop.run_folder import locked
folder, got = Path(sys.argv[1]), 0
while got < 150:
    try:
        with locked(folder):
            mark = folder / "inside"
            mark.touch(exist_ok=False)  # refused where another is inside
            mark.unlink()
            got += 1
    except UsageError as error:
        assert "under way" in str(error), error
"""


def start(script: str, folder: Path) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", script, str(folder)]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_second_run_is_refused_until_the_first_is_gone_however_it_went(tmp_path: Path) -> None:
    folder = tmp_path / "outputs" / "r"
    with start(HOLD, folder) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        with pytest.raises(UsageError, match="another run is under way") as refused, locked(folder):
            pass
        assert str(folder) in str(refused.value)
        first.kill()
    with locked(folder):
        pass


def test_processes_that_come_and_go_are_never_two_at_once(tmp_path: Path) -> None:
    processes = [start(TAKE_TURNS, tmp_path / "r") for _ in range(3)]
    assert [process.communicate(timeout=120) and process.returncode for process in processes] == [
        0
    ] * 3


def test_what_was_not_begun_leaves_no_folder(tmp_path: Path) -> None:
    with locked(tmp_path / "outputs" / "r"):
        assert (tmp_path / "outputs" / "r").is_dir()
    assert not list(tmp_path.iterdir())
    with locked(tmp_path / "r"):
        write_config(tmp_path / "r", "{}")
    assert [p.name for p in (tmp_path / "r").iterdir()] == ["config.json"]


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be written"), locked(tmp_path / "file" / "r"):
        pass


def test_a_config_that_does_not_fit_leaves_the_earlier_one(tmp_path: Path) -> None:
    write_config(tmp_path, "the earlier one")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))  # Python ignores its signal
    try:
        with pytest.raises(UsageError, match="cannot be written"):
            write_config(tmp_path, "x" * 20_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "config.json").read_text() == "the earlier one\n"
    assert [p.name for p in tmp_path.iterdir()] == ["config.json"]
