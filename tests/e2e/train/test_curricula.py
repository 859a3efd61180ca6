"""Levels, stages of turns and the choice of groups by spread, in a run that is stopped and goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from air.train.loop.metrics import reproducible
from air.trajectories import load
from tests.e2e.commands.test_commands import command

EASY, HARD = "air.testing:letters", "question:shop-level1"


def run_file(folder: Path, model: Path) -> Path:
    folder.mkdir()
    path = folder / "run.toml"
    path.write_text(
        f"""
max_steps = 3
seq_len = 896
output_dir = "{folder}"
run.name = "r"
model.name = "{model}"
ckpt.interval = 1
trainer.optim.lr = 1e-3
trainer.loss.entropy_coefficient = 0.01   # each step trains, also one whose rewards are all equal
[orchestrator]
batch_size = 8
group_size = 2
train.sampling.max_completion_tokens = 8
[[orchestrator.train.source]]
name = "s"
[orchestrator.train.source.env.taskset]
id = "air"
tasks = ["{EASY}", "{HARD}"]
examples_per_task = 8
[orchestrator.train.source.env.agent.harness]
id = "air"
max_observation_tokens = 64
[embedded]
deterministic = true
top_spread_share = 0.5
rounds = {{ max_turns = [1, 2], stage_steps = 2 }}
[[embedded.levels]]
promote_at = 0.0   # as soon as the window is full
window = 12
"""
    )
    return path


def test_a_run_with_curricula_goes_on_as_one_that_was_never_stopped(
    small: Path, tmp_path: Path
) -> None:
    file = run_file(tmp_path / "whole", small)
    done = command("rl", "@", file, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    line = f"source s: level 2 of 2 ({HARD}) from step 3 on; success 0.00 in the last 12 episodes"
    assert line in done.stdout
    assert line in (tmp_path / "whole" / "r" / "log.txt").read_text()
    rows = metrics(tmp_path / "whole" / "r")
    assert [row["curriculum/s/level"] for row in rows] == [1, 1, 2]
    assert [row["curriculum/max_turns"] for row in rows] == [1, 1, 2]
    # GRL's choice of groups: of four, the two with the largest spread.
    assert [(row["groups"], row["selected_groups"]) for row in rows] == [(4, 2)] * 3
    starts = [load(path).start for path in (tmp_path / "whole/r/trajectories").glob("*.jsonl")]
    kinds = {(one.task, one.max_turns) for one in starts if one}
    assert kinds == {(EASY, 1), (HARD, 2)}
    done = command("rl", "@", file, "--resume.step", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert line in done.stdout
    assert metrics(tmp_path / "whole" / "r") == rows


def metrics(run: Path) -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [reproducible(json.loads(line)) for line in lines]
