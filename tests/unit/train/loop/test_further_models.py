"""What an algorithm needs beyond rewards, for the groups of a step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from air.env.credit import split
from air.train.config.model_options import LoRAConfig
from air.train.config.run_config import RunConfig
from air.train.further_models.frozen_model import FrozenModel, WithoutAdapter
from air.train.loop.further_models import FurtherModels, load
from air.train.loop.rollout import Group, Rollout
from air.train.model import policy
from air.train.tree.sample import Sample
from tests.rollouts import chain, made, payment


class Places:
    """A scorer whose log-probability of a token is minus its place in the sample."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []

    def score(self, samples: Sequence[Sample]) -> list[list[float]]:
        self.samples = list(samples)
        return [[-float(i) for i, sampled in enumerate(s.mask) if sampled] for s in samples]

    def close(self) -> None:
        pass


def played(*traces: Any, greedy: Rollout | None = None) -> Group:
    rollouts = [Rollout("s", "t", [t], error="" if t.ok else "failed") for t in traces]
    return Group(rollouts, greedy)


def test_every_reply_is_scored_once_where_it_is_trained() -> None:
    # Two replies, 2 and 3, follow the prompt 0–1; then 4 and 5 go on from reply 2.
    forked = made([None, 0, 1, 1, 2, 4], [2, 3, 5], [payment(6, delta=1.0)])
    failed = chain(1, [], ok=False)
    places = Places()
    models = FurtherModels({"teacher": places}, None, greedy=False, temperature=0.5)
    inputs = models.score([played(forked, failed)])
    numbers = inputs.tokens["teacher"]
    replies = {n: forked.nodes[n] for n in (2, 3, 5)}
    assert set(numbers) == {id(node) for node in replies.values()}
    # Every message has two tokens that are not sampled; so the prompt has four.
    for number, before in ((2, 4), (3, 4), (5, 4 + len(replies[2].mask) + 2)):
        count = sum(replies[number].mask)
        first = before + 2
        assert numbers[id(replies[number])] == [-float(first + n) for n in range(count)]
    assert all(sample.temperature == 0.5 for sample in places.samples)
    assert sum(sum(s.mask) for s in places.samples) == sum(sum(n.mask) for n in replies.values())


def test_the_mean_difference_to_the_teacher_by_hand() -> None:
    # A reply's log-probabilities are −0.125 · 3 = −.375; the teacher's are minus the places from 6 on.
    [trace] = [chain(1, [])]
    models = FurtherModels({"teacher": Places()}, None, greedy=False, temperature=1.0)
    count = sum(trace.nodes[2].mask)
    mean = sum(6 + n for n in range(count)) / count
    metrics = models.score([played(trace)]).metrics
    assert metrics == {"ref_kl": pytest.approx(0.375 - mean)}


def test_the_baseline_is_the_greedy_episodes_reward_or_its_segments_mean() -> None:
    paid = [payment(3, delta=0.5), payment(5, delta=0.25)]
    whole = Rollout("s", "t", [chain(2, paid)])
    segments = Rollout("s", "t", split(chain(2, paid)))
    broken = Rollout("s", "t", [], error="the box died")
    models = FurtherModels({}, None, greedy=True, temperature=1.0)
    groups = [played(chain(1, []), greedy=greedy) for greedy in (whole, segments, broken)]
    found = models.score(groups).greedy
    assert found is not None
    assert len(segments.traces) == 2
    assert list(found) == [pytest.approx(0.75), pytest.approx(0.375), None]


def test_equal_rewards_have_spread_if_the_greedy_episodes_differs() -> None:
    same = [chain(1, [payment(3, delta=0.5)]) for _ in range(2)]
    assert not played(*same).has_spread
    assert not played(*same, greedy=Rollout("s", "t", [same[0]])).has_spread
    assert played(*same, greedy=Rollout("s", "t", [chain(1, [])])).has_spread


def config(folder: Path) -> RunConfig:
    algo = {"type": "opd", "teacher": {"name": str(folder)}}
    source = {"env": {"taskset": {"id": "air"}, "agent": {"harness": {"id": "air"}}}}
    return RunConfig.model_validate(
        {
            "max_steps": 1,
            "model": {"name": str(folder)},
            "embedded": {"attention": "eager"},
            "orchestrator": {
                "batch_size": 2,
                "group_size": 2,
                "algo": algo,
                "train": {"source": [source]},
            },
        }
    )


def test_models_beside_the_policy_have_its_type_and_attention(folder: Path) -> None:
    learner = policy.load(folder, dtype="bfloat16", attention="eager")
    needs = ("reference", "teacher", "values")
    models = load(needs, config(folder), learner, lambda _: None)
    for scorer in models.scorers.values():
        assert isinstance(scorer, FrozenModel)
        beside = scorer.policy.model
        assert beside is not learner.model
        assert (beside.dtype, beside.config._attn_implementation) == (torch.bfloat16, "eager")
    assert all(p.requires_grad for p in learner.model.parameters())
    assert models.values is not None
    assert {p.dtype for p in models.values.parameters} == {torch.float32}
    assert models.values.backbone.config._attn_implementation == "eager"


def test_the_base_model_of_the_policys_adapter_is_not_loaded_again(
    folder: Path, tmp_path: Path
) -> None:
    learner = policy.load(folder, lora=LoRAConfig(rank=2, alpha=4))
    learner.save(tmp_path)
    [reference] = load(["reference"], config(folder), learner, print).scorers.values()
    assert isinstance(reference, WithoutAdapter)
    assert reference.policy is learner
    # A run that goes on with an adapter starts from it, not from its base model.
    [reference] = load(["reference"], config(tmp_path), learner, print).scorers.values()
    assert isinstance(reference, FrozenModel)
