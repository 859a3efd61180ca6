"""The two programs that find a command's program in the folders of PATH: the guest, and the fork of a Python
interpreter that was started in advance. Both follow the same rules."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from air.sandbox.guest import spawn
from air.sandbox.reuse import zygote

MISSING, DENIED, FORMAT = (
    (FileNotFoundError, "No such file or directory"),
    (PermissionError, "Permission denied"),
    (OSError, "Exec format error"),
)


def _run(path: Any, argv: Any, env: Any) -> str:
    """Runs the program as `os.execve` does, but in a new process, and returns its output."""
    return subprocess.run(
        argv, executable=path, env=env, stdout=subprocess.PIPE, check=True, text=True
    ).stdout


def _guest(argv: list[str], env: dict[str, str]) -> str:
    return str(spawn.run_from_path(_run, argv, env))


def _fork(argv: list[str], env: dict[str, str]) -> str:
    pairs = {os.fsencode(name): os.fsencode(value) for name, value in env.items()}
    return str(zygote._run_from_path(_run, [os.fsencode(word) for word in argv], pairs))


FINDERS = pytest.mark.parametrize("find", [_guest, _fork])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with `one/` and `two/`, in which `plain` is not executable in `one/` only; the working
    directory is this folder."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "plain").write_text(f"#!/bin/sh\necho {name}\n")
        (tmp_path / name / "unmarked").write_text("echo ran\n")
        (tmp_path / name / "unmarked").chmod(0o755)
    (tmp_path / "two/plain").chmod(0o755)
    (tmp_path / "one/folder").mkdir()
    (tmp_path / "here").write_text("#!/bin/sh\necho here\n")
    (tmp_path / "here").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@FINDERS
@pytest.mark.parametrize(
    ("name", "path", "output"),
    [
        ("plain", "one:two", "two\n"),
        ("plain", "no-such-folder:here:two", "two\n"),
        ("here", "", "here\n"),
        ("here", "one::two", "here\n"),
        ("./here", "one", "here\n"),
        ("two/plain", "one", "two\n"),
    ],
)
def test_a_program_runs_from_the_first_folder_in_which_it_can(
    find: Any, name: str, path: str, output: str, folder: Path
) -> None:
    assert find([name], {"PATH": path}) == output


@FINDERS
@pytest.mark.parametrize(
    ("name", "path", "problem"),
    [
        ("no-such-program", "one:two", MISSING),
        ("no-such-program", "", MISSING),
        ("./no-such-program", "one", MISSING),
        ("sh", "no-such-folder:here", MISSING),
        ("plain", "one", DENIED),
        ("plain", "one:no-such-folder", DENIED),
        ("one/plain", "two", DENIED),
        ("folder", "one:two", DENIED),
        ("one/folder", "two", DENIED),
        ("unmarked", "one:two", FORMAT),
        ("one/unmarked", "two", FORMAT),
        ("", "one", DENIED),
    ],
)
def test_a_program_that_cannot_run_is_an_error_of_the_system(
    find: Any, name: str, path: str, problem: tuple[type[OSError], str], folder: Path
) -> None:
    with pytest.raises(problem[0]) as caught:
        find([name], {"PATH": path})
    assert caught.value.strerror == problem[1]


@FINDERS
def test_without_path_the_systems_folders_are_searched(find: Any) -> None:
    assert find(["sh", "-c", "echo ran"], {}) == "ran\n"
    with pytest.raises(FileNotFoundError):
        find(["no-such-program"], {})


FORK = """
import os, sys
from air.sandbox.reuse import zygote
for name in set(sys.modules) & {"warnings", "contextlib"}:
    del sys.modules[name]
sys.addaudithook(
    lambda event, details: event in ("import", "os.exec")
    and os.write(1, f"{event} {os.fsdecode(details[0])}\\n".encode())
)
path = os.fsencode("PATH=/no-such-folder:" + os.environ["PATH"])
zygote._execute(None, [b"/", b"2", b"echo", b"ran", path])
"""


def test_a_fork_imports_nothing_and_executes_only_a_program_that_exists() -> None:
    result = subprocess.run(
        [sys.executable, "-c", FORK], stdout=subprocess.PIPE, check=True, text=True
    )
    assert result.stdout.splitlines() == [f"os.exec {shutil.which('echo')}", "ran"]
