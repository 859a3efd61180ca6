"""The table of mistakes in docs/mistakes.md: each line is typed, and its answer compared with the page."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from air.cli.main import main
from tests.docs.blocks import ROOT

PAGE = ROOT / "docs" / "mistakes.md"
ROW = re.compile(r"^\| `(.+?)` \| ``? ?(.+?) ?``? \|$", re.MULTILINE)
ROWS = ROW.findall(PAGE.read_text(encoding="utf-8"))
RUN_FILE = """
max_steps = 3
[orchestrator]
batch_size = 16
group_size = 8
[[orchestrator.train.source]]
[orchestrator.train.source.env]
delta = "best"
[orchestrator.train.source.env.taskset]
id = "air"
tasks = ["titanic"]
"""
EPISODE = (
    {"v": 1, "type": "start", "t": 1.0, "episode": "aa", "task": "titanic", "task_hash": "0", "seed": 0,
     "system": "S", "prompt": "P", "model": "m"},
    {"v": 1, "type": "end", "t": 2.0, "ok": True, "why": "submit", "reward": 0.0, "terms": {}, "metrics": {}},
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder in which the page's lines are typed; `air` is on the PATH."""
    run = tmp_path / "outputs" / "first"
    (run / "trajectories").mkdir(parents=True)
    (run / "config.json").write_text("{}\n")
    lines = "".join(json.dumps(line) + "\n" for line in EPISODE)
    (run / "trajectories" / "aa.jsonl").write_text(lines)
    (tmp_path / "run.toml").write_text(RUN_FILE)
    (tmp_path / "broken.toml").write_text("max_steps = = 3\n")
    (tmp_path / "script").write_text("submit\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AIR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.delenv("AIR_MLGYM_ROOT", raising=False)
    return tmp_path


def test_the_page_has_about_fifty_mistakes() -> None:
    assert len(ROWS) >= 50
    assert len({typed for typed, _ in ROWS}) == len(ROWS)


@pytest.mark.parametrize(("typed", "answer"), ROWS, ids=[typed for typed, _ in ROWS])
def test_the_answer_to_a_mistake_is_the_page_s(
    typed: str,
    answer: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = shlex.split(typed)
    while re.match(r"[A-Z_]+=", words[0]):
        monkeypatch.setenv(*words.pop(0).split("=", 1))
    arguments = words[1:] if words[0] == "air" else words
    assert main(arguments) == 2
    error = capsys.readouterr().err
    parts = map(re.escape, answer.replace("\\|", "|").split("…"))
    assert re.fullmatch("error: " + ".*".join(parts) + "\n", error), error
