"""A cache of its own for every test, and small tasks made on the spot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from air import tasks
from air.tasks.spec import TaskSpec

DATA = """
def prepare(agent_dir, grader_dir, split_seed):
    (agent_dir / "question.txt").write_text(f"{split_seed}")
    (grader_dir / "answer.txt").write_text("secret 7")
"""
GRADER = """
import argparse, json, pathlib, sys
parser = argparse.ArgumentParser()
for name in ("artefact", "split", "seed", "out"):
    parser.add_argument(f"--{name}")
args = parser.parse_args()
given = (pathlib.Path(args.artefact) / "answer.txt").read_text()
here = pathlib.Path(__file__).parent

def end(code, text):
    pathlib.Path(args.out).write_text(text)
    sys.exit(code)

BODY
"""
REFUSE = 'if not given: end(3, json.dumps({"message": "it is empty"}))\n'
SCORE = REFUSE + 'end(0, json.dumps({"metrics": {"score": float(given), "other": 1.0}}))'

MakeTask = Callable[..., TaskSpec]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("AIR_CACHE", str(folder))
    return folder


@pytest.fixture
def make_task(tmp_path: Path) -> MakeTask:
    """Writes and loads a task `tiny` whose grader ends with the given lines."""

    def make(grade: str = SCORE, *, data: str = DATA, toml: str = "") -> TaskSpec:
        folder = tmp_path / "tasks" / "tiny"
        for name, text in {
            "task.toml": TOML + toml,
            "data.py": data,
            "starter/answer.txt": "1",
            "grader/grade.py": GRADER.replace("BODY", grade),
        }.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        return tasks.load("tiny", [folder.parent])

    return make


TOML = """
id = "tiny"
name = "Tiny"
description = "Write a number into answer.txt."
metric = "score"
direction = "higher"
baseline = 1.0
target = 2.0
artefact = "answer.txt"
"""
