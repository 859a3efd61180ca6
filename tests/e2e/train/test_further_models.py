"""Runs whose algorithm needs more than rewards: a value model, a greedy episode, a teacher."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from air.testing import ScoringServer
from air.train.further_models.frozen_model import FrozenModel
from air.train.model import checkpoint, policy
from air.train.serving.server import InferenceServer
from air.train.tree.sample import Sample
from tests.e2e.commands.test_commands import bad, command
from tests.e2e.conftest import run_toml
from tests.e2e.train.test_resume import rows


def run(folder: Path, model: Path, *flags: str, steps: int = 1) -> Path:
    """Trains the run `r`, with groups of four; returns its folder."""
    file = run_toml(folder, model, "subprocess", max_steps=steps, batch_size=4)
    done = command("rl", f"@{file}", "--deterministic", *flags, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "outputs" / "r"


def groups(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "groups.jsonl").read_text().splitlines()]


KL = ("--embedded.kl.target", "0.1", "--embedded.kl.horizon", "4")
GAE = (
    "--orchestrator.algo.type",
    "gae",
    "--embedded.value-model.warmup-steps",
    "1",
    "--embedded.value-model.optim.lr",
    "1e-3",
)


def test_ppo_warms_its_value_model_up_and_resumes_exactly(small: Path, tmp_path: Path) -> None:
    # The reference is the policy before its warm start: another model with the same tokenizer.
    flags = [*GAE, *KL, "--embedded.reference.model", str(small.parent / "base")]
    folder = run(tmp_path, small, *flags, steps=2)
    first, second = rows(folder)
    assert (first["train/updated"], second["train/updated"]) == (0, 1)
    assert first["train/value_mean"] == 0  # the head starts at 0
    assert second["train/value_mean"] != 0
    # Far above the target: the coefficient grows by a fifth times the 4 episodes / horizon 4.
    assert first["train/reference_kl"] > 1
    assert second["train/kl_coefficient"] == pytest.approx(1.2 * first["train/kl_coefficient"])
    assert all(row["train/value_loss"] > 0 for row in (first, second))
    weights = [(folder / f"checkpoints/step_{n}/model.safetensors").read_bytes() for n in (1, 2)]
    assert weights[0] == (small / "model.safetensors").read_bytes()  # the warm-up
    assert weights[1] != weights[0]
    _, state = checkpoint.load_state(folder / "checkpoints/step_2")

    again = tmp_path / "again"
    again.mkdir()
    shutil.copytree(tmp_path / "outputs", again / "outputs")
    assert rows(run(again, small, *flags, "--resume.step", "1", steps=2)) == [first, second]
    _, other = checkpoint.load_state(again / "outputs/r/checkpoints/step_2")
    for name in ("backbone", "head"):
        ours, theirs = (s["needed"]["values"][name] for s in (state, other))
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_remax_plays_one_greedy_episode_a_group(small: Path, tmp_path: Path) -> None:
    folder = run(tmp_path, small, "--orchestrator.algo.type", "remax")
    [group], [row] = groups(folder), rows(folder)
    greedy = group["greedy"]
    assert greedy["advantage"] is None
    names = {one["episode"] for one in [*group["episodes"], greedy]}
    assert len(names) == 5
    assert names == {path.stem for path in (folder / "trajectories").glob("*.jsonl")}
    rewards = [one["reward"] for one in group["episodes"]]
    assert row["episodes"] == 4
    assert row["greedy_reward"] == greedy["reward"]
    assert [one["advantage"] for one in group["episodes"]] == pytest.approx(
        [reward - greedy["reward"] for reward in rewards]
    )


def test_distillation_trains_towards_a_teacher_on_a_server(small: Path, tmp_path: Path) -> None:
    teacher = FrozenModel(policy.load(small.parent / "base"), 4096)

    def score(ids: Sequence[int]) -> list[float]:
        mask = [place > 0 for place in range(len(ids))]
        return [0.0, *teacher.score([Sample(list(ids), mask, [0.0] * len(ids), 0.0, 1.0)])[0]]

    with ScoringServer(score) as server:
        flags = ["--orchestrator.algo.type", "opd", "--orchestrator.algo.teacher.name", "teacher"]
        folder = run(tmp_path, small, *flags, "--orchestrator.algo.teacher.base-url", server.url)
    [group], [row] = groups(folder), rows(folder)
    assert row["train/updated"] == 1
    # The untrained teacher finds nearly every token of the policy unlikely.
    assert row["ref_kl/mean"] < -1
    assert all(one["advantage"] < -1 for one in group["episodes"])


def with_teacher(url: str) -> list[str]:
    source = "--orchestrator.algo.sampling.source"
    return ["--orchestrator.algo.type", "sft", f"{source}.name", "t", f"{source}.base-url", url]


def test_a_teacher_on_a_server_plays_and_the_policy_learns_its_tokens(
    small: Path, tmp_path: Path
) -> None:
    # The policy is the teacher before its warm start, and cannot write a single word.
    file = run_toml(tmp_path, small.parent / "base", "subprocess", batch_size=4)
    with InferenceServer(policy.load(small), name="t") as server:
        flags = [*with_teacher(f"{server.url}/v1"), "--trainer.optim.lr", "1e-2"]
        done = command("rl", f"@{file}", *flags, cwd=tmp_path)
        sampled = server.metrics().completion_tokens
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = rows(tmp_path / "outputs/r")
    assert first["train/tokens"] + second["train/tokens"] == sampled > 100
    assert first["loss/mean"] > 4
    assert 0 < second["loss/mean"] < first["loss/mean"] - 0.1
    # Another model's tokens have no version, so nothing is stale, and no drift is reported.
    assert not {"weights_version", "off_policy/max"} & set(first)
    assert "other probabilities" not in done.stderr
    for play in (tmp_path / "outputs/r/trajectories").glob("*.jsonl"):
        assert "Try it." in play.read_text()


def test_a_teacher_with_another_tokenizer_stops_the_run(small: Path, tmp_path: Path) -> None:
    words = ["Quick brown foxes jump over lazy dogs, again and again and again."] * 20
    other = policy.build(tmp_path / "other", words, hidden=64, layers=1, vocab=512)
    file = run_toml(tmp_path, small, "subprocess")
    with InferenceServer(policy.load(other), name="t") as server:
        done = command("rl", f"@{file}", *with_teacher(f"{server.url}/v1"), cwd=tmp_path)
    bad(done, "orchestrator.algo.sampling.source", "name a model with the policy's tokenizer")


def test_a_teacher_that_is_away_stops_the_run_with_its_key(small: Path, tmp_path: Path) -> None:
    file = run_toml(tmp_path, small, "subprocess")
    away = ["base-url=http://127.0.0.1:9/v1", "name=t", "wait-for-ready-timeout=0"]
    flags = [part for key in away for part in f"--orchestrator.algo.teacher.{key}".split("=")]
    done = command("rl", f"@{file}", "--orchestrator.algo.type", "opd", *flags, cwd=tmp_path)
    assert done.returncode == 1
    assert "orchestrator.algo.teacher.base_url: no answer from http://127.0.0.1:9/v1" in done.stderr


def test_a_value_model_without_gae_is_refused(small: Path, tmp_path: Path) -> None:
    file = run_toml(tmp_path, small, "subprocess")
    refused = command("rl", f"@{file}", "--embedded.value-model.epochs", "2", cwd=tmp_path)
    bad(refused, "value_model", 'is only for orchestrator.algo.type = "gae"')
