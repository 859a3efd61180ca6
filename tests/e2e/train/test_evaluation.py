"""Evaluations during a run: greedy, on held-out seeds, recorded; the best checkpoint remains."""

from __future__ import annotations

import json
from pathlib import Path

from air.train.loop import run_folder
from air.trajectories import evaluations, load, trajectory_files
from tests.e2e.commands.test_commands import bad, command
from tests.e2e.conftest import run_toml

EVAL = """
[orchestrator.eval]
interval = 1
[[orchestrator.eval.source]]
name = "held out"
[orchestrator.eval.source.env.taskset]
id = "air"
tasks = ["titanic"]
first_seed = 1000
[orchestrator.eval.source.env.agent]
max_turns = 2
[orchestrator.eval.source.env.agent.runtime]
type = "subprocess"
[orchestrator.eval.source.env.agent.harness]
id = "air"
max_observation_tokens = 64
"""


def test_a_run_evaluates_before_between_and_after_its_steps(small: Path, tmp_path: Path) -> None:
    file = run_toml(tmp_path, small, "subprocess", batch_size=4)
    file.write_text(file.read_text() + EVAL)
    flags = ["--ckpt.keep-last", "1", "--orchestrator.eval.group-size", "2"]
    flags += ["--orchestrator.eval.sampling.max-completion-tokens", "96"]
    done = command("rl", f"@{file}", *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = tmp_path / "outputs" / "r"
    rows = evaluations.rows(folder)
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert all(row["sources"]["held out"]["reward"] == row["reward"] for row in rows)
    for row in rows:
        check_episodes(folder, row["step"], row["reward"])
    best = evaluations.best_step(rows, "reward", [1, 2])
    assert set(run_folder.steps(folder / "checkpoints")) == {best, 2}
    assert "prompts of the training" not in done.stdout
    assert f"best after step {evaluations.best_step(rows, 'reward', [0, 1, 2])}" in done.stdout
    assert len(list((folder / "trajectories").glob("*.jsonl"))) == 8  # training's alone
    reported = command("air", "report", folder, "--json", cwd=tmp_path)
    (run,) = json.loads(reported.stdout)["runs"]
    assert [row["step"] for row in run["evaluations"]] == [0, 1, 2]
    assert "evaluations during the run" in command("air", "report", folder, cwd=tmp_path).stdout
    again = ["--step", "best", "--episodes", "1", "--no-start"]
    played = command("air", "eval", folder, *again, cwd=tmp_path)
    assert played.returncode == 0, played.stdout + played.stderr
    assert f"step_{best}" in played.stdout
    bad(command("air", "eval", folder, "--step", "7", cwd=tmp_path), "no checkpoint of step 7")
    bad(command("air", "eval", small, "--step", "best", cwd=tmp_path), "--step", "leave it out")


def check_episodes(folder: Path, step: int, reward: float) -> None:
    """Two greedy episodes of one prompt with a seed that training has not: they are the same."""
    files = trajectory_files(run_folder.evaluation_folder(folder, step) / "held-out")
    played = [load(path) for path in files]
    assert len(played) == 2
    for one in played:
        assert one.start is not None
        assert one.start.seed == 1000
        assert one.end is not None
        assert one.end.ok
    traces = sorted((files[0].parent / "traces").glob("*.jsonl"))
    calls = [call for t in traces for call in json.loads(t.read_text())["traces"][0]["calls"]]
    assert {call["sampling"]["temperature"] for call in calls} == {0.0}
    rewards = [one.end.reward for one in played if one.end is not None]
    assert sum(rewards) / 2 == reward


def test_a_metric_that_evaluations_lack_is_named_before_the_first_step(
    small: Path, tmp_path: Path
) -> None:
    file = run_toml(tmp_path, small, "subprocess", batch_size=4)
    file.write_text(file.read_text() + EVAL.replace("1000", "0"))
    done = command("rl", f"@{file}", "--embedded.best-metric", "rewards", cwd=tmp_path)
    # This evaluation is not held out, which the run says.
    assert "evaluation: 1 of its prompts are prompts of the training, too (titanic" in done.stdout
    assert "taskset.first_seed of [[orchestrator.eval.source]] to 1 or more" in done.stdout
    bad_lines = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert done.returncode == 2, done.stdout + done.stderr
    assert len(bad_lines) == 1
    for words in ("embedded.best_metric", "'rewards'", "choose one of", "reward, "):
        assert words in bad_lines[0]
    assert not (tmp_path / "outputs" / "r" / "metrics.jsonl").exists()
