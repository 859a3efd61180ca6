"""A run that is killed goes on as one that was never stopped, to the bit, with its evaluations."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from air.train.loop import run_folder
from air.train.loop.metrics import reproducible
from air.train.model import checkpoint
from air.trajectories import evaluations
from tests.e2e.commands.test_commands import command
from tests.e2e.conftest import run_toml
from tests.e2e.train.test_evaluation import EVAL
from tests.fork_server import of_this_run

FULL = os.environ.get("AIR_FULL") == "1"
SEED = "AIR_KILL_SEED"
"""Names the seed of the moments at which runs are killed. Without it, `make test-all` draws a new one."""
RUNS = {
    "grpo": [],
    # An adaptive coefficient, a value model and its warm-up.
    "gae": [
        *("--orchestrator.algo.type", "gae"),
        *("--embedded.kl.target", "0.1", "--embedded.kl.horizon", "4"),
        *("--embedded.value-model.warmup-steps", "1", "--embedded.value-model.optim.lr", "1e-3"),
    ],
    "lora": ["--trainer.model.lora.rank", "4", "--trainer.model.lora.alpha", "8"],
}
KILLS = {"grpo": 12 if FULL else 1, "gae": 6, "lora": 6}


@pytest.mark.parametrize(
    "kind", ["grpo", *(pytest.param(kind, marks=pytest.mark.full) for kind in ("gae", "lora"))]
)
def test_a_killed_run_goes_on_bit_by_bit_as_one_that_was_never_stopped(
    small: Path, tmp_path: Path, kind: str
) -> None:
    whole = start(tmp_path / "whole", small, kind)
    done = command("rl", *whole, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    expected = tmp_path / "whole" / "outputs" / "r"
    updated = [row["train/updated"] for row in rows(expected)]
    assert updated == ([0, 1, 1] if kind == "gae" else [1, 1, 1])
    seed = int(os.environ.get(SEED) or (int.from_bytes(os.urandom(4)) if FULL else 14))
    with named(seed):
        folder = killed(tmp_path / "again", small, kind, random.Random(seed), entries(expected))
        check_equal(folder, expected)


@contextmanager
def named(seed: int) -> Iterator[None]:
    """Adds to an error how to repeat it."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"{SEED}={seed} repeats the moments at which the run was killed")
        raise


def killed(parent: Path, model: Path, kind: str, draw: random.Random, size: int) -> Path:
    """Kills a run at random moments and resumes it, until it ends. `size` is the number of entries of a
    finished run's folder. Returns the run's folder."""
    argv, folder = start(parent, model, kind), parent / "outputs" / "r"
    held = 0
    for number in range(KILLS[kind]):
        more = draw.randint(1, size // 2 if KILLS[kind] > 1 else size - 1)
        held += kill([*argv, "--resume"] if number else argv, folder, entries(folder) + more)
    print(f"{kind}: {held} of {KILLS[kind]} runs were killed before they ended")
    done = command("rl", *argv, "--resume", cwd=parent)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def check_equal(folder: Path, expected: Path) -> None:
    """Two runs have the same metrics, rewards, evaluations, checkpoints and final state, to the bit."""
    for row, other in zip(rows(folder), rows(expected), strict=True):
        changed = {key for key in {*row, *other} if row.get(key) != other.get(key)}
        assert not changed, {key: (row.get(key), other.get(key)) for key in changed}
    assert rewards(folder) == rewards(expected)
    assert evaluated(folder) == evaluated(expected)
    assert run_folder.steps(folder / "checkpoints") == run_folder.steps(expected / "checkpoints")
    last, other = (one / "checkpoints" / "step_3" for one in (folder, expected))
    weights = sorted(path.name for path in other.glob("*.safetensors"))
    assert weights
    for name in weights:
        assert (last / name).read_bytes() == (other / name).read_bytes(), name
    assert_same(checkpoint.load_state(last), checkpoint.load_state(other), "state")


def assert_same(one: Any, other: Any, place: str) -> None:
    """Two states (nested containers of tensors and plain values) are equal. `place` names them in errors."""
    assert type(one) is type(other), place
    if isinstance(one, dict):
        assert one.keys() == other.keys(), place
        for key, value in one.items():
            assert_same(value, other[key], f"{place}[{key!r}]")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), place
        for number, value in enumerate(one):
            assert_same(value, other[number], f"{place}[{number}]")
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other), place
    else:
        assert one == other, place


def start(folder: Path, model: Path, kind: str) -> list[str]:
    """The arguments of a run in this folder."""
    folder.mkdir()
    file = run_toml(folder, model, "subprocess", max_steps=3, batch_size=4)
    file.write_text(file.read_text() + EVAL)
    # With an entropy bonus each step trains, also one whose rewards are all equal.
    flags = ["--deterministic", "--trainer.loss.entropy-coefficient", "0.01", *RUNS[kind]]
    if kind == "gae":  # the reference is the model before its warm start
        flags += ["--embedded.reference.model", str(model.parent / "base")]
    flags += ["--ckpt.keep-last", "1", "--orchestrator.eval.sampling.max-completion-tokens", "96"]
    return [f"@{file}", *flags]


def kill(argv: Sequence[str], folder: Path, count: int) -> bool:
    """Starts the run, and kills it when its folder has this number of entries. Returns whether it was killed
    before it ended."""
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
        code = process.wait(60)
    assert code in (0, -signal.SIGKILL), output.read_text()
    return code != 0


def entries(folder: Path) -> int:
    """The number of files and folders of a run: it grows with each episode, step and checkpoint."""
    begun = (folder / "config.json").is_file()
    # Unlike `rglob`, `walk` leaves out a folder that the run removes meanwhile.
    return sum(len(d) + len(f) for _, d, f in os.walk(folder)) if begun else 0


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
