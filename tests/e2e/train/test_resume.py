"""A run that is killed goes on as one that was never stopped, to the bit, with its evaluations."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from air.train.loop import run_folder
from air.train.loop.metrics import reproducible
from air.trajectories import evaluations
from tests.e2e.commands.test_commands import command
from tests.e2e.conftest import run_toml
from tests.e2e.train.test_evaluation import EVAL
from tests.fork_server import of_this_run

KILLS = 12 if os.environ.get("AIR_FULL") else 1


def test_a_killed_run_goes_on_bit_by_bit_as_one_that_was_never_stopped(
    small: Path, tmp_path: Path
) -> None:
    whole = start(tmp_path / "whole", small)
    done = command("rl", *whole, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    expected = tmp_path / "whole" / "outputs" / "r"
    assert all(row["train/updated"] for row in rows(expected))
    again = start(tmp_path / "again", small)
    folder = tmp_path / "again" / "outputs" / "r"
    draw = random.Random(14)
    for number in range(KILLS):
        more = draw.randint(1, entries(expected) // 2)
        kill([*again, "--resume"] if number else again, folder, entries(folder) + more)
    done = command("rl", *again, "--resume", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert rows(folder) == rows(expected)
    assert rewards(folder) == rewards(expected)
    assert evaluated(folder) == evaluated(expected)
    assert run_folder.steps(folder / "checkpoints") == run_folder.steps(expected / "checkpoints")
    weights = "checkpoints/step_3/model.safetensors"
    assert (folder / weights).read_bytes() == (expected / weights).read_bytes()


def start(folder: Path, model: Path) -> list[str]:
    """The arguments of a run in this folder."""
    folder.mkdir()
    file = run_toml(folder, model, "subprocess", max_steps=3, batch_size=4)
    file.write_text(file.read_text() + EVAL)
    # With an entropy bonus each step trains, also one whose rewards are all equal.
    flags = ["--deterministic", "--trainer.loss.entropy-coefficient", "0.01"]
    flags += ["--ckpt.keep-last", "1", "--orchestrator.eval.sampling.max-completion-tokens", "96"]
    return [f"@{file}", *flags]


def kill(argv: Sequence[str], folder: Path, count: int) -> None:
    """Starts the run, and kills it when its folder has this number of entries, or is done before."""
    output = folder.parents[1] / "out"
    with (
        output.open("wb") as log,
        of_this_run().spawn(
            ["rl", *argv], cwd=folder.parents[1], env=dict(os.environ), streams=[log, log]
        ) as process,
    ):
        deadline = time.monotonic() + 300
        while process.poll() is None and entries(folder) < count:
            assert time.monotonic() < deadline, output.read_text()
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        assert process.wait(60) in (0, -signal.SIGKILL), output.read_text()


def entries(folder: Path) -> int:
    """The number of files and folders of a run: it grows with each episode, step and checkpoint."""
    begun = (folder / "config.json").is_file()
    return sum(1 for _ in folder.rglob("*")) if begun else 0


def rows(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics, without those that measure time or memory."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [reproducible(json.loads(line)) for line in lines]


def evaluated(folder: Path) -> list[dict[str, Any]]:
    """The evaluations of a run, without their durations."""
    return [{**row, "seconds": None} for row in evaluations.rows(folder)]


def rewards(folder: Path) -> list[Any]:
    """The rewards and advantages of all groups, in order."""
    groups = [json.loads(line) for line in (folder / "groups.jsonl").read_text().splitlines()]
    return [[(one["reward"], one["advantage"]) for one in group["episodes"]] for group in groups]
