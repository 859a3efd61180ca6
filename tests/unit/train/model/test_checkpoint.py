from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from air.errors import MissingError
from air.train.config.model_options import AdamWConfig, LoRAConfig
from air.train.loop import run_folder
from air.train.loop.trainer import Trainer
from air.train.model import checkpoint, policy
from air.train.model.policy import Policy
from tests.fork_server import of_this_run
from tests.unit.train.loop.test_trainer import sampled


def test_training_goes_on_as_if_never_stopped(small: Policy, tmp_path: Path) -> None:
    samples = sampled(small, [1.0, -1.0])
    trainer = Trainer(small, AdamWConfig(lr=1e-3))
    trainer.step(samples)
    saved = checkpoint.save(tmp_path, 1, small, {**trainer.state_dict(), "note": "x"})
    expected = trainer.step(samples)

    again = policy.load(saved)
    step, state = checkpoint.load_state(saved)
    assert (step, state["note"]) == (1, "x")
    resumed = Trainer(again, AdamWConfig(lr=1e-3))
    resumed.load_state_dict(state)
    found = resumed.step(samples)
    assert resumed.steps == 2
    for name in ("loss", "grad_norm"):
        assert found[name] == pytest.approx(expected[name], rel=1e-5)
    for a, b in zip(small.model.parameters(), again.model.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_only_the_newest_are_kept(small: Policy, tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    assert run_folder.steps(root) == []
    for step in (5, 10, 20):
        assert checkpoint.save(root, step, small, keep_last=2) == root / f"step_{step}"
    checkpoint.save(root, 20, small, keep_last=2)
    assert run_folder.steps(root) == [10, 20]
    assert sorted(p.name for p in root.iterdir()) == ["step_10", "step_20"]


def test_the_best_one_is_kept_beside_the_newest(small: Policy, tmp_path: Path) -> None:
    for step in range(1, 6):
        checkpoint.save(tmp_path, step, small, keep_last=2, keep=[2])
    assert run_folder.steps(tmp_path) == [2, 4, 5]
    checkpoint.save(tmp_path, 6, small, keep_last=2, keep=[5])  # another one is the best now
    assert run_folder.steps(tmp_path) == [5, 6]


def test_of_a_model_with_an_adapter_only_that_needs_space(folder: Path, tmp_path: Path) -> None:
    learner = policy.load(folder, lora=LoRAConfig(rank=1))
    weights = sum(p.numel() for p in learner.model.parameters() if p.requires_grad)
    assert checkpoint.size(learner, {"a": [torch.zeros(3)]}) == 4 * (weights + 3)
    learner.save(tmp_path)
    written = (tmp_path / "adapter_model.safetensors").stat().st_size
    assert 4 * weights <= written < 4 * weights + 20_000
    whole = policy.load(folder)
    assert checkpoint.size(whole) == 4 * whole.parameters()


def test_unfinished_folders_are_not_checkpoints(tmp_path: Path) -> None:
    (tmp_path / ".step_3.99").mkdir()
    (tmp_path / "step_4").mkdir()
    assert run_folder.steps(tmp_path) == []
    with pytest.raises(MissingError, match=r"no training\.pt here"):
        checkpoint.load_state(tmp_path / "step_4")


FULL = """
import resource, signal, sys
from pathlib import Path
from air.errors import UsageError
from air.train.model import checkpoint, policy
root, folder = Path(sys.argv[1]), sys.argv[2]
small = policy.load(folder)
checkpoint.save(root, 1, small, {"a": 1})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for room in (50_000, 1_000_000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    try:
        checkpoint.save(root, 2, small, {"blob": "x" * 2_000_000}, keep_last=1)
    except UsageError as error:
        print(error)
"""


@pytest.mark.slow
def test_a_write_that_fails_leaves_the_earlier_one(folder: Path, tmp_path: Path) -> None:
    # A limit on file sizes stands in for a full disk: first the weights fail, then the state.
    weights = (folder / "model.safetensors").stat().st_size
    assert 50_000 < weights < 1_000_000
    argv = ["python", "-c", FULL, str(tmp_path), str(folder)]
    done = of_this_run().run(argv, cwd=folder, env=os.environ, seconds=600)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith(f"{tmp_path}: the checkpoint could not be written (")
        assert "the checkpoint of step 1 is intact — free some space" in line
    assert [p.name for p in tmp_path.iterdir()] == ["step_1"]
    assert checkpoint.load_state(tmp_path / "step_1") == (1, {"a": 1})
