"""A run with an algorithm, a loss and terms that are not the defaults."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import pstdev

import pytest

from air.train.algorithms.duration_weights import duration_weights
from air.trajectories import read
from tests.e2e.commands.test_commands import command
from tests.e2e.conftest import run_toml
from tests.e2e.train.test_further_models import run
from tests.e2e.train.test_resume import rows


def test_adpo_with_an_entropy_bonus_and_a_penalty_in_the_loss(small: Path, tmp_path: Path) -> None:
    """The reference is the policy itself. Its penalty is 0 at the first step, before the weights move, but
    for the rounding between the sampler and the reference; and above that at the second."""
    flags = {
        "orchestrator.algo.type": "adpo",
        "trainer.loss.type": "ppo_clip",
        "trainer.loss.normalization": "sequence",
        "trainer.loss.entropy-coefficient": "0.01",
        "trainer.optim.lr": "1e-3",
        "embedded.kl.place": "loss",
        "embedded.kl.estimator": "mse",
    }
    argv = [part for key, value in flags.items() for part in (f"--{key}", value)]
    first, second = rows(run(tmp_path, small, *argv, steps=2))
    assert first["train/reference_kl"] == pytest.approx(0, abs=1e-8)
    assert second["train/reference_kl"] > 1e-6
    # The penalty and the bonus train all sampled tokens, also if no reward differs.
    for row in (first, second):
        assert row["train/updated"] == 1
        assert row["train/tokens"] == row["sampled_tokens"]


def test_weights_by_duration_in_a_run_that_is_resumed(small: Path, tmp_path: Path) -> None:
    """The key is in the run's config, so a resumed run has the weights, too."""
    file = run_toml(tmp_path, small, "subprocess", max_steps=1, batch_size=4)
    cap = ("--embedded.duration-weight-cap", "2")
    done = command("rl", f"@{file}", *cap, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = tmp_path / "outputs" / "r"
    config = folder / "config.json"
    assert json.loads(config.read_text())["embedded"]["duration_weight_cap"] == 2
    done = command("rl", f"@{config}", "--resume", "--max-steps", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row["step"] for row in rows(folder)] == [1, 2]
    for row in rows(folder):
        assert row["failed_episodes"] == 0
        seconds, replies = durations(folder, row["step"])
        weights = duration_weights(seconds, 2.0)
        wanted = {"min": min(weights), "max": max(weights), "std": pstdev(weights)}
        wanted["known"] = len(weights) / replies
        found = {name: row[f"duration_weight/{name}"] for name in wanted}
        assert found == pytest.approx(wanted)


def durations(folder: Path, step: int) -> tuple[list[float], int]:
    """The execution times that the trajectories of a step recorded, and the number of its replies."""
    seconds, replies = [], 0
    for file in (folder / "trajectories").glob("*.jsonl"):
        start, *lines = read(file)
        if start["training_step"] == step:
            steps = [line for line in lines if line["type"] == "step"]
            replies += len(steps)
            seconds += [line["exec_seconds"] for line in steps if line["exec_seconds"]]
    return seconds, replies
