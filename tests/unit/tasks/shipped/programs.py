"""Runs a shipped task's own programs as they are: what is written for an agent, and the grader."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from air import paths
from air.tasks.data import prepare
from air.tasks.spec import TaskSpec
from air.tasks.splits import SPLIT_SEED, numbered


def workspace(task: TaskSpec, place: Path) -> Path:
    """A fresh workspace of a task at `place`."""
    shutil.copytree(prepare(task).agent, place, dirs_exist_ok=True)
    return place


def run(place: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Runs a Python program of the workspace."""
    line = [sys.executable, "-B", *command]
    return subprocess.run(line, cwd=place, capture_output=True, text=True, check=False)


BAD_CONFIGS = [
    (None, "expected one line"),
    ("", "both method=1..4 and level=1..4"),
    ("method=2", "both method=1..4 and level=1..4"),
    ("method=5 level=1", "method=5 is unknown"),
    ("method=1 depth=1", "depth=1 is unknown"),
    ("method 1", "expected one line"),
]
"""Files `config` that no starter takes, None for no file, and what it says of each."""


def config_error(task: TaskSpec, place: Path, config: str | None) -> str:
    """The one line with which a starter refuses its `config`; it writes no artefact."""
    (workspace(task, place) / "config").unlink()
    if config is not None:
        (place / "config").write_text(config)
    result = run(place, "solve.py")
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert not (place / task.artefact).exists()
    return result.stderr


def grade(
    task: TaskSpec, place: Path, split: str = "val", seed: int = 0, *, split_seed: int = SPLIT_SEED
) -> dict[str, Any]:
    """What the task's grader says of the artefact in `place`: it ends with 0 or 3."""
    out = place / "out.json"
    script = prepare(task.on(numbered(split_seed))).grader / "grade.py"
    options = ["--artefact", place, "--split", split, "--seed", seed, "--out", out]
    command = [sys.executable, "-B", script, *options]
    result = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
    assert result.returncode in (0, 3), result.stderr
    said: dict[str, Any] = json.loads(out.read_text())
    assert ("message" in said) == (result.returncode == 3)
    return said


def message(task: TaskSpec, place: Path) -> str:
    """What an agent is told of an artefact at fault."""
    return str(grade(task, place).get("message", "no fault was found"))


def module(path: Path) -> ModuleType:
    """A file of a grader or starter as a module; nothing of it stays in `sys.modules`."""
    found = ModuleType(path.stem)
    exec(compile(path.read_bytes(), str(path), "exec"), found.__dict__)
    return found


def shared(name: str) -> ModuleType:
    """A module of `tasks/_shared`, which finds the others there as it does beside a grader."""
    folder = str(paths.shipped("tasks") / "_shared")
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(folder)
