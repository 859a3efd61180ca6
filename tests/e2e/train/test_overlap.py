"""One step off-policy: the next episodes play during an update, and each token knows its weights."""

from __future__ import annotations

import json
from pathlib import Path

from air.trajectories import load, trajectory_files
from tests.e2e.commands.test_commands import command
from tests.e2e.conftest import run_toml


def test_no_token_is_older_than_one_update(small: Path, tmp_path: Path) -> None:
    file = run_toml(tmp_path, small, "subprocess", max_steps=3)
    flags = ["--orchestrator.max-off-policy-steps", "1"]
    done = command("rl", f"@{file}", *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = tmp_path / "outputs" / "r"
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    groups = [json.loads(line) for line in (folder / "groups.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3]
    for row in rows:
        step = row["step"]
        played = [one for g in groups if g["step"] == step for one in g["episodes"]]
        check_ages(row, step, [one["reply_versions"] for one in played])
        check_recorded(folder, step, {one["episode"] for one in played})
    assert rows[0]["off_policy/max"] == 0  # nothing was trained before
    # Without overlap, a step's episodes begin after the checkpoint of the step before, which is saved at
    # the end of its update.
    for step in (1, 2):
        saved = (folder / f"checkpoints/step_{step}").stat().st_mtime
        assert began(folder, step + 1) < saved
    # Also off-policy, the sampler's probabilities are those of the weights that it had.
    on_policy = [row["versions"].get(str(row["step"] - 1)) for row in rows]
    assert all(one["mismatch_kl_max"] < 1e-4 for one in on_policy if one)


def check_ages(row: dict[str, float], step: int, versions: list[list[int]]) -> None:
    """Replies are sampled by the weights that the step trains, or those before them; never by newer ones."""
    assert len(versions) == 8
    for replies in versions:
        assert replies == sorted(replies)
        assert set(replies) <= {step - 1, max(0, step - 2)}
    ages = [step - 1 - replies[0] for replies in versions]
    assert row["off_policy/max"] == max(ages)
    assert row["off_policy/mean"] == sum(ages) / 8


def began(folder: Path, step: int) -> float:
    """When the first episode of a training step began, in seconds since the epoch."""
    starts = [load(path).start for path in trajectory_files(folder)]
    return min(one.t for one in starts if one is not None and one.training_step == step)


def check_recorded(folder: Path, step: int, episodes: set[str]) -> None:
    starts = [load(path).start for path in trajectory_files(folder)]
    own = {one.episode for one in starts if one is not None and one.training_step == step}
    assert own == episodes
