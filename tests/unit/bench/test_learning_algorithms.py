"""The game and the verdict of `make learning ARGS=--algorithms`."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from air.train.loop.further_models import conversations
from air.train.model.logprobs import token_logprobs
from air.train.serving.sampler import SamplingParams


@pytest.fixture
def program() -> ModuleType:
    return importlib.import_module("bench.learning.algorithms")


def test_a_right_answer_earns_a_sixth_at_its_turn(program: ModuleType, tmp_path: Path) -> None:
    game = program.game
    policy = program.policies.load(game.build(tmp_path / "model", seed=0))
    groups = game.play(policy, [(0, 1, 2), (3, 3, 0)], 4, "seed", greedy=True)
    assert [len(group.rollouts) for group in groups] == [4, 4]
    for group, signs in zip(groups, [(0, 1, 2), (3, 3, 0)], strict=True):
        for rollout in group.played:
            replies = [node for node in rollout.trace.nodes if node.sampled]
            assert [len(node.token_ids) for node in replies] == [2, 2, 2]
            paid = [sum(p["terms"].values()) for p in rollout.info["paid"]]
            for turn, node in enumerate(replies):
                pairs = zip(node.token_ids, game.right_answers(signs, turn), strict=True)
                assert paid[turn] == pytest.approx(sum(a == b for a, b in pairs) / 6)
            assert rollout.reward == pytest.approx(sum(paid))
    again = game.play(policy, [(0, 1, 2), (3, 3, 0)], 4, "seed", greedy=True)
    assert [g.greedy.trace.nodes[1].token_ids for g in again] == [
        g.greedy.trace.nodes[1].token_ids for g in groups
    ]
    assert game.right_answers((1, 2, 0), 0) == (10, 13)  # answers 3 · 1 + 1 = 4 and 5 · 1 + 2 = 7
    assert game.right_answers((1, 2, 0), 1) == (13, 13)  # 3 · 2 + 1 = 7, and 7 for the sign before


@pytest.mark.parametrize("name", ["grpo", "gae", "remax", "opd"])
def test_a_step_of_each_kind_runs(program: ModuleType, tmp_path: Path, name: str) -> None:
    folder = program.game.build(tmp_path / "model", seed=0)
    config = program.run_config(name, folder, folder, steps=1)
    policy = program.policies.load(folder)
    rewards, mismatch = program.trained(policy, config, 0, shuffled=False)
    assert len(rewards) == 1
    assert 0 <= mismatch < 1e-8


@pytest.mark.slow
def test_supervised_training_learns_a_teachers_tokens(program: ModuleType, tmp_path: Path) -> None:
    """The teacher plays behind a server; its tokens become more likely under the policy."""
    folder, other = (program.game.build(tmp_path / str(n), seed=n) for n in (0, 1))
    policy, teacher = program.policies.load(folder), program.policies.load(other)
    with torch.no_grad():  # so that the teacher prefers some tokens
        teacher.model.get_input_embeddings().weight.mul_(20)
    teacher.save(other)
    prompts, params = [[n] for n in range(2, 14)], SamplingParams(max_tokens=2, seed=7)
    with program.serving(other, needed=True) as url:
        player = program.game.of_server(url)
        sampled = player(prompts, [params] * 12)
        groups = program.game.play(player, program.game.EVERY_GAME[:8], 2, "seed")
        before = likelihood(policy, groups)
        config = program.run_config("sft", folder, other, 3, url)
        rewards, _ = program.trained(policy, config, 0, shuffled=False)
    ends = replace(params, stop_token_ids=frozenset({1}))
    here = program.game.of_policy(teacher)(prompts, [ends] * 12)
    assert [row.token_ids for row in sampled] == [row.token_ids for row in here]
    assert len(rewards) == 3
    assert likelihood(policy, groups) > before + 0.05


def likelihood(policy: Any, groups: list[Any]) -> float:
    """The mean log-probability, in nats, of the sampled tokens of these episodes under the policy."""
    found: list[float] = []
    for sample in conversations(groups, 1.0):
        with torch.no_grad():
            logprobs = token_logprobs(policy.model, torch.tensor([sample.token_ids]))[0]
        found += logprobs[torch.tensor(sample.mask)].tolist()
    return sum(found) / len(found)


def result(seed: int, end: float, arm: str) -> dict[str, Any]:
    return {"algorithm": "grpo", "arm": arm, "seed": seed, "start": 0.1, "end": end}


def test_the_verdict_by_hand(program: ModuleType) -> None:
    """Gains .4, .5, .6: .5 ± .1/√3 = .0577. Control 0, .1, .2: .1 ± .0577. .385 > .215."""
    trained = [result(n, 0.5 + 0.1 * n, "trained") for n in range(3)]
    control = [result(n, 0.1 + 0.1 * n, "control") for n in range(3)]
    lines, learnt = program.table([*trained, *control], ["grpo"])
    assert learnt
    assert lines[-1].endswith("| 0.500 ± 0.058 | 0.100 ± 0.058 | yes |")
    better = [result(n, 0.3 + 0.1 * n, "control") for n in range(3)]  # .3 + .115 > .385
    assert not program.table([*trained, *better], ["grpo"])[1]
    one_seed, learnt = program.table([trained[0], control[0]], ["grpo"])
    assert not learnt
    assert one_seed[-1] == "| grpo | 0.100 | 0.500 | 0.100 | 0.400 | 0.000 | NO |"
