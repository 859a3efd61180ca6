"""The programs of `.ci`: where something was cut short, and what they tell pytest."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def ci(*command: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A program of `.ci`, which is not told of the worker that plays this test."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    return subprocess.run(
        [ROOT / ".ci" / command[0], *command[1:]],
        cwd=ROOT,
        env={**own, **env},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("cut_short", [True, False])
def test_an_environment_whose_installation_was_cut_short_is_made_anew(
    cut_short: bool, tmp_path: Path
) -> None:
    """Without a network the installation fails here too, and leaves its mark for the next one."""
    if not (shutil.which("uv") or (ROOT / "build/uv/bin/uv").exists()):
        pytest.skip("no uv here: `make env` gets it")
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(sys.executable)
    (venv / "half").touch()
    if cut_short:
        (venv / ".filling").touch()
    settings = {"AIR_VENV": str(venv), "UV_OFFLINE": "1", "UV_CACHE_DIR": str(tmp_path / "cache")}
    done = ci("environment", PYTHON=sys.executable, **settings)
    assert done.returncode == 2, done.stderr
    assert "the Python environment could not be made" in done.stderr
    assert ("was cut short" in done.stdout) == cut_short
    assert (venv / "half").exists() != cut_short
    assert (venv / ".filling").exists()
    assert not (venv / ".ready").exists()


@pytest.mark.full  # starts a fork server of its own
def test_a_worker_that_crashes_ends_the_run_and_names_the_test(tmp_path: Path) -> None:
    failed = tmp_path / "failed"
    program = str(Path(sys.executable).parent)
    done = ci("tests", program, "2", "tests/data/crashing.py", AIR_FAILED_FILE=str(failed))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "crashed while running 'tests/data/crashing.py::test_ends_its_worker'" in done.stdout
    assert "worker gw0 crashed and worker restarting disabled" in done.stdout
    assert not failed.exists()


def test_bytecode_is_written_whatever_the_environment_says(tmp_path: Path) -> None:
    program = tmp_path / "pytest"
    program.write_text('#!/bin/sh\necho "${PYTHONDONTWRITEBYTECODE-unset}"\n')
    program.chmod(0o755)
    failed = str(tmp_path / "failed")
    done = ci("tests", str(tmp_path), "1", AIR_FAILED_FILE=failed, PYTHONDONTWRITEBYTECODE="1")
    assert (done.returncode, done.stdout) == (0, "unset\n"), done.stderr
