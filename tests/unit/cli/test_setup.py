"""`air setup` and `air images` where there is no engine, and the pid files that keep one from starting."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from air.cli.boxes import setup
from air.cli.main import main

CALL = "import sys; from air.cli.main import main; sys.exit(main(['setup']))"


def _setup(**env: str) -> subprocess.CompletedProcess[str]:
    environ = {k: v for k, v in os.environ.items() if k != "AIR_REQUIRE_DOCKER"} | env
    argv = [sys.executable, "-c", CALL]
    return subprocess.run(argv, capture_output=True, text=True, env=environ, check=False)


@pytest.mark.parametrize("required", ["", "1"])
def test_an_engine_that_the_user_named_must_answer(tmp_path: Path, required: str) -> None:
    host = f"unix://{tmp_path}/none.sock"
    done = _setup(DOCKER_HOST=host, AIR_REQUIRE_DOCKER=required)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        f"error: DOCKER_HOST={host}: no Docker engine answers: its socket is not"
    )
    assert line.count(" — ") == 1


def test_no_table_is_begun_without_an_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert main(["images", "ls"]) == 2
    out, error = capsys.readouterr()
    assert not out
    assert "no Docker engine answers" in error


@pytest.mark.parametrize("text", ["", "garbage", "999999999"])
def test_a_pid_file_without_its_process_is_removed(tmp_path: Path, text: str) -> None:
    file = tmp_path / "docker.pid"
    file.write_text(text)
    assert not setup.clear_stale_pids(tmp_path)
    assert not file.exists()


def test_a_pid_file_that_names_another_program_is_removed(tmp_path: Path) -> None:
    nested = tmp_path / "docker" / "containerd"
    nested.mkdir(parents=True)
    for file in (tmp_path / "docker.pid", nested / "containerd.pid"):
        file.write_text(str(os.getpid()))
    assert not setup.clear_stale_pids(tmp_path)
    assert list(tmp_path.rglob("*.pid")) == []


def test_a_pid_file_of_a_live_engine_stays(tmp_path: Path) -> None:
    program = tmp_path / "dockerd"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([str(program), "30"]) as process:
        comm = Path(f"/proc/{process.pid}/comm")
        try:
            while comm.read_text() != "dockerd\n":  # set a moment after Popen returns
                time.sleep(0.01)
            (tmp_path / "docker.pid").write_text(f"{process.pid}\n")
            assert setup.clear_stale_pids(tmp_path)
            assert (tmp_path / "docker.pid").exists()
        finally:
            process.kill()
