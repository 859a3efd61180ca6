"""`air matrix`: trains and plays every cell, and goes on where it was killed."""

from __future__ import annotations

import csv
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from air.trajectories import load
from air.worlds.sources import VALIDATION_SEED
from tests.e2e.commands.test_commands import bad, command
from tests.fork_server import ForkedCommand, of_this_run

LETTERS, SHOP = "air.testing:letters", "question:shop-level1"
EPISODES = 3


def matrix_toml(folder: Path, model: Path) -> Path:
    """One row, two seeds, two columns; one step each."""
    path = folder / "matrix.toml"
    path.write_text(
        f"""
name = "m"
output_dir = "{folder}"
columns = ["{LETTERS}", "{SHOP}"]
seeds = [0, 1]
rows.letters = ["{LETTERS}"]
evaluation.episodes = {EPISODES}
[settings]
max_steps = 1
seq_len = 896
model.name = "{model}"
trainer.optim.lr = 1e-3
trainer.loss.entropy_coefficient = 0.01
[settings.orchestrator]
batch_size = 4
group_size = 2
train.sampling.max_completion_tokens = 8
[[settings.orchestrator.train.source]]
[settings.orchestrator.train.source.env.taskset]
id = "air"
tasks = ["{LETTERS}"]
examples_per_task = 8
[settings.orchestrator.train.source.env.agent]
max_turns = 2
[settings.orchestrator.train.source.env.agent.harness]
id = "air"
max_observation_tokens = 64
"""
    )
    return path


def episodes(folder: Path) -> list[Path]:
    return sorted(folder.rglob("trajectories/*.jsonl"))


def test_a_killed_matrix_goes_on_cell_by_cell(small: Path, tmp_path: Path) -> None:
    toml, folder = matrix_toml(tmp_path, small), tmp_path / "m"
    mistyped = command("air", "matrix", "@", toml, "--settings.model.name", "./smal", cwd=tmp_path)
    bad(mistyped, "./smal: no such model folder")
    assert not folder.exists()
    kill(toml, folder / "cells" / "letters-seed0", tmp_path)
    before = {path: path.stat().st_mtime_ns for path in checkpoints(folder)}
    assert len(before) == 1
    done = command("air", "matrix", "@", toml, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path: path.stat().st_mtime_ns for path in checkpoints(folder)}.items() >= before.items()
    assert len(checkpoints(folder)) == 2
    results = json.loads((folder / "results.json").read_text())
    check(results, folder)
    # The seeds of a column's episodes are the same in all rows, and never those of a training.
    for column in ("air.testing-letters", "question-shop-level1"):
        seeds = [ended(cell) for cell in sorted((folder / "cells").glob(f"*/{column}"))]
        assert seeds == [[VALIDATION_SEED + n for n in range(EPISODES)]] * 3
    assert all(
        (start := load(path).start) is not None and start.seed < VALIDATION_SEED
        for path in episodes(folder / "runs")
    )
    again = command("air", "matrix", "@", toml, cwd=tmp_path)
    assert again.stdout.count("all 2 cells are played") == 3
    assert json.loads((folder / "results.json").read_text()) == results
    bad(
        command("air", "matrix", "@", toml, "--settings.max-steps", "2", cwd=tmp_path),
        "begun with another `settings.max_steps`",
    )


def kill(toml: Path, folder: Path, cwd: Path) -> None:
    """Starts the matrix and kills it when the first episode of a cell below `folder` begins."""
    output = cwd / "out"
    with (
        output.open("wb") as log,
        of_this_run().spawn(
            ["air", "matrix", "@", str(toml)], cwd=cwd, env=dict(os.environ), streams=[log, log]
        ) as process,
    ):
        wait_for_episodes(process, folder, output)
        process.send_signal(signal.SIGKILL)
        assert process.wait(60) in (0, -signal.SIGKILL), output.read_text()


@pytest.mark.full
def test_a_matrix_that_is_terminated_while_it_plays_says_so(small: Path, tmp_path: Path) -> None:
    toml, output = matrix_toml(tmp_path, small), tmp_path / "out"
    argv = ["air", "matrix", "@", str(toml), "--evaluation.episodes", "5000"]
    with (
        output.open("wb") as log,
        of_this_run().spawn(
            argv, cwd=tmp_path, env=dict(os.environ), streams=[log, log]
        ) as process,
    ):
        wait_for_episodes(process, tmp_path / "m" / "cells", output)
        process.send_signal(signal.SIGTERM)
        assert process.wait(600) == 130, output.read_text()
    assert "interrupted; what is done is kept; the same command goes on" in output.read_text()


def wait_for_episodes(process: ForkedCommand, folder: Path, output: Path) -> None:
    """Waits until the first episode below `folder` begins, or the process ends."""
    deadline = time.monotonic() + 600
    while process.poll() is None and not episodes(folder):
        assert time.monotonic() < deadline, output.read_text()
        time.sleep(0.05)


def checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("runs/*/checkpoints/step_1/model.safetensors"))


def ended(cell: Path) -> list[int]:
    """The seeds of a cell's episodes that ended well."""
    found = [load(path) for path in episodes(cell)]
    return sorted(one.start.seed for one in found if one.start and one.end and one.end.ok)


def check(results: dict[str, Any], folder: Path) -> None:
    assert (results["rows"], results["columns"]) == (["base", "letters"], [LETTERS, SHOP])
    assert len(results["cells"]) == 4
    for cell in results["cells"]:
        seeds = 1 if cell["row"] == "base" else 2
        assert (cell["seeds"], cell["episodes"]) == (seeds, seeds * EPISODES)
        assert cell["measure"] == "success"
        assert 0 <= cell["low"] <= cell["value"] <= cell["high"] <= 1
    trained = {(cell["row"], cell["column"]) for cell in results["cells"] if cell["trained_on"]}
    assert trained == {("letters", LETTERS)}
    rows = list(csv.DictReader((folder / "results.csv").read_text().splitlines()))
    assert [row["column"] for row in rows] == [LETTERS, SHOP] * 2
    assert (folder / "heat_map.png").read_bytes()[:4] == b"\x89PNG"
