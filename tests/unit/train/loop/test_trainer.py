from __future__ import annotations

import math

import pytest
import torch

from air.errors import InfrastructureError
from air.train.config.loss_options import CrossEntropyLossConfig
from air.train.config.model_options import (
    AdamWConfig,
    ConstantSchedulerConfig,
    CosineSchedulerConfig,
    LinearSchedulerConfig,
    check_schedule,
)
from air.train.loop.trainer import Trainer
from air.train.model.batch_by_length import micro_batches
from air.train.model.logprobs import token_logprobs
from air.train.model.optimizer import learning_rate
from air.train.model.policy import Policy
from air.train.serving.sampler import SamplingParams
from air.train.tree.sample import Sample
from tests.unit.train.conftest import generate

PROMPT = list(range(30, 50))


def sampled(policy: Policy, advantages: list[float], temperature: float = 0.7) -> list[Sample]:
    params = [
        SamplingParams(temperature=temperature, max_tokens=5 + 3 * n, seed=n)
        for n in range(len(advantages))
    ]
    replies = generate(policy, [PROMPT] * len(advantages), params)
    head = len(PROMPT)
    return [
        Sample(
            PROMPT + r.token_ids,
            [False] * head + [True] * len(r.token_ids),
            [0.0] * head + r.logprobs,
            advantage,
            temperature,
        )
        for r, advantage in zip(replies, advantages, strict=True)
    ]


def probability(policy: Policy, sample: Sample) -> float:
    with torch.no_grad():
        found = token_logprobs(policy.model, torch.tensor([sample.token_ids]), sample.temperature)[
            0
        ]
    return float(found[torch.tensor(sample.mask)].sum())


def test_good_replies_become_likelier_and_bad_ones_less(small: Policy) -> None:
    good, bad = sampled(small, [1.0, -1.0])
    before = probability(small, good), probability(small, bad)
    trainer = Trainer(small, AdamWConfig(lr=1e-4))
    first = trainer.step([good, bad])
    assert first["mismatch_kl"] < 1e-6
    assert first["is_masked"] == 0
    assert first["tokens"] == 5 + 8
    # On policy, the loss is minus the advantages per token: (8 - 5) / 13.
    assert first["loss"] == pytest.approx(3 / 13, abs=1e-4)
    assert first["entropy"] > 1
    for _ in range(3):
        last = trainer.step([good, bad])
    assert probability(small, good) > before[0]
    assert probability(small, bad) < before[1]
    assert last["mismatch_kl"] > first["mismatch_kl"]


@pytest.mark.slow
def test_the_cross_entropy_is_the_mean_over_tokens_that_another_model_sampled(
    small: Policy, warm: Policy
) -> None:
    samples = sampled(warm, [1.0, 1.0])
    total = sum(probability(small, sample) for sample in samples)
    trainer = Trainer(small, AdamWConfig(lr=1e-4), loss=CrossEntropyLossConfig())
    metrics = trainer.step(samples)
    assert metrics["loss"] == pytest.approx(-total / metrics["tokens"], rel=1e-5)
    assert metrics["is_masked"] == 0
    assert trainer.step(samples)["loss"] < metrics["loss"]


def test_micro_batches_do_not_change_the_gradient(small: Policy) -> None:
    samples = sampled(small, [1.0, -0.5, 0.25, 2.0, -1.0])
    gradients = []
    for budget in (10_000, 40):
        trainer = Trainer(small, AdamWConfig(lr=0.0, max_norm=None), micro_batch_tokens=budget)
        gradients.append(trainer.step(samples))
    first, second = gradients
    for name in ("loss", "grad_norm", "entropy", "tokens"):
        assert second[name] == pytest.approx(first[name], rel=1e-4)


def test_no_advantage_no_update(small: Policy) -> None:
    before = [p.clone() for p in small.model.parameters()]
    trainer = Trainer(small, AdamWConfig(lr=1.0))
    found = trainer.step(sampled(small, [0.0, 0.0]))
    assert (found["updated"], found["samples"], trainer.steps) == (0, 0, 1)
    assert trainer.step([])["updated"] == 0
    assert all(a.equal(b) for a, b in zip(before, small.model.parameters(), strict=True))


def test_tokens_without_advantage_count_nowhere(small: Policy) -> None:
    [whole] = sampled(small, [1.0])
    count = len(whole.token_ids)
    per_token = [0.0] * (count - 2) + [3.0, -1.0]
    found = Trainer(small, AdamWConfig(lr=0.0)).step(
        [Sample(whole.token_ids, whole.mask, whole.logprobs, per_token, whole.temperature)]
    )
    assert found["tokens"] == 2
    assert found["loss"] == pytest.approx(-1.0, abs=1e-4)


def test_nothing_is_updated_from_gradients_that_are_not_finite(small: Policy) -> None:
    before = [p.clone() for p in small.model.parameters()]
    [sample] = sampled(small, [math.inf])
    with pytest.raises(InfrastructureError, match="not finite"):
        Trainer(small, AdamWConfig(lr=1e-3)).step([sample])
    assert all(a.equal(b) for a, b in zip(before, small.model.parameters(), strict=True))


def test_samples_are_checked() -> None:
    with pytest.raises(ValueError, match="equally long"):
        Sample([1, 2], [False], [0.0, 0.0], 1.0, 1.0)
    with pytest.raises(ValueError, match="position 0"):
        Sample([1, 2], [True, True], [0.0, 0.0], 1.0, 1.0)


def test_linear_schedule_by_hand() -> None:
    config = LinearSchedulerConfig(warmup_steps=4, decay_steps=3, min_lr=0.2)
    rates = [learning_rate(step, 1.0, config, 10) for step in range(10)]
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0, 1.0, 1.0, 0.6, 0.2])
    rising = LinearSchedulerConfig(warmup_steps=2, decay_steps=0)
    rates = [learning_rate(step, 1.0, rising) for step in range(4)]
    assert rates == pytest.approx([0.0, 0.5, 1.0, 1.0], abs=1e-6)


def test_other_schedules_by_hand() -> None:
    assert learning_rate(7, 0.3, ConstantSchedulerConfig()) == 0.3
    cosine = CosineSchedulerConfig(warmup_steps=0, min_lr=0.0)
    rates = [learning_rate(step, 2.0, cosine, 4) for step in range(5)]
    assert rates == pytest.approx([2.0, 1 + math.sqrt(0.5), 1.0, 1 - math.sqrt(0.5), 0.0])


def test_schedules_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="exceed max_steps"):
        check_schedule(LinearSchedulerConfig(warmup_steps=6, decay_steps=5), 10)
    with pytest.raises(ValueError, match="needs max_steps"):
        check_schedule(LinearSchedulerConfig(), None)
    check_schedule(LinearSchedulerConfig(warmup_steps=10, decay_steps=0), None)


def test_micro_batches_by_hand() -> None:
    assert micro_batches([3, 10, 4, 5], 12) == [[1], [3, 2], [0]]
    assert micro_batches([50, 1], 12) == [[0], [1]]
    assert micro_batches([], 12) == []
