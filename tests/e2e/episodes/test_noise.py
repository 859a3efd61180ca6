"""A task whose scores have luck in them, played whole: its luck earns nothing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from air.testing import replies
from air.trajectories import read
from tests.e2e.conftest import played_by, research
from tests.unit.tasks.conftest import DATA, GRADER, REFUSE, TOML

LUCKY = (
    REFUSE
    + """
import random
luck = random.Random(f"{given} {args.split} {args.seed}").gauss(0, 0.1)
end(0, json.dumps({"metrics": {"score": float(given) + luck}}))
"""
)
WRITE = "Write.\n```bash\necho {} > answer.txt\n{}\n```"
SCRIPT = replies(
    WRITE.format("1.5", "validate"),
    WRITE.format("1.51", "validate"),
    WRITE.format("1.49", "validate"),
    WRITE.format("1.5", "validate"),
    WRITE.format("1.99", "submit"),
)


def lucky(folder: Path, settings: str) -> Path:
    """A root with the task `tiny`: what is written is the score, give or take 0.1."""
    files = {"task.toml": TOML + settings, "data.py": DATA, "starter/answer.txt": "1"}
    files["grader/grade.py"] = GRADER.replace("BODY", LUCKY)
    for name, text in files.items():
        path = folder / "tasks" / "tiny" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "tasks"


async def played(folder: Path, settings: str) -> tuple[Any, list[dict[str, Any]]]:
    """One episode: its trace, and the lines of its validates."""
    config = research(
        ["tiny"],
        "subprocess",
        record_dir=folder / "record",
        max_turns=9,
        task_roots=[lucky(folder, settings)],
    )
    async with played_by(SCRIPT, config) as play:
        (trace,) = (await play()).traces
    assert trace.ok, trace.errors
    (path,) = (folder / "record").glob("*.jsonl")
    return trace, [line for line in read(path) if line["type"] == "validate"]


async def test_moves_within_the_noise_earn_nothing_and_real_ones_do(tmp_path: Path) -> None:
    trace, lines = await played(tmp_path, "noise_sigmas = 3.0\n[grader]\nrepeats = 4\n")
    deltas = [line["delta"] for line in lines]
    assert deltas[0] == pytest.approx(lines[0]["score"] - 1.0)  # baseline 1, target 2
    assert deltas[1:4] == [0.0, 0.0, 0.0]
    assert deltas[4] == pytest.approx(lines[4]["score"] - lines[0]["score"])
    assert lines[1]["score"] != lines[0]["score"]
    assert lines[3]["score"] == lines[0]["score"]  # the same artefact
    assert lines[3]["remembered"]
    errors = [line["stderr"] for line in lines]
    assert all(0.005 < error < 0.2 for error in errors)  # 0.1/√4, as far as four can tell
    assert lines[0]["floor"] == pytest.approx(3 * errors[0])
    assert lines[1]["floor"] == pytest.approx(3 * math.hypot(errors[0], errors[1]))
    assert trace.metrics["score_stderr"] == errors[-1]
    assert 0.005 < trace.metrics["test_stderr"] < 0.2
    assert f" ± {errors[0]:.1f} (best " in str(trace.messages[3].content)


async def test_where_noise_is_not_measured_the_same_steps_are_paid_by_luck(tmp_path: Path) -> None:
    trace, lines = await played(tmp_path, "")
    assert all(line["delta"] != 0 for line in lines)
    assert [line["stderr"] for line in lines] == [None] * 5
    assert "test_stderr" not in trace.metrics
    assert "±" not in str(trace.messages[3].content)
