"""Losses on entries, their normalisation and their terms, on numbers worked by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from air import train
from air.errors import ConfigError
from air.train.algorithms.losses import total_loss
from air.train.algorithms.losses.base import LossInputs
from air.train.algorithms.losses.cross_entropy import cross_entropy
from air.train.algorithms.losses.kl import KL
from air.train.algorithms.losses.normalization import token_weights
from air.train.config.loss_options import (
    CrossEntropyLossConfig,
    DefaultLossConfig,
    IPOLossConfig,
    PolicyLossConfig,
    PPOClipLossConfig,
)
from air.train.config.model_options import AdamWConfig
from air.train.further_models.frozen_model import FrozenModel, divergences
from air.train.loop.trainer import Trainer
from air.train.model import policy as policies
from air.train.model.logprobs import token_statistics
from air.train.model.policy import Policy
from air.train.tree.sample import Sample
from tests.unit.train.test_from_python import SETTINGS


def logs(*probabilities: float) -> torch.Tensor:
    return torch.tensor(probabilities).log()


def computed(
    now: torch.Tensor, then: torch.Tensor, advantages: Any, config: PolicyLossConfig, **arrays: Any
) -> tuple[list[float], dict[str, float]]:
    """The losses and metrics of these entries, without terms."""
    tensors = {name: torch.tensor(values) for name, values in arrays.items()}
    inputs = LossInputs(now, then, torch.tensor(advantages), tensors)
    losses, sums = total_loss(inputs, torch.zeros_like(now), config)
    return losses.tolist(), {name: float(value) for name, value in sums.items()}


def test_on_policy_loss_is_minus_the_advantages() -> None:
    for config in (DefaultLossConfig(), IPOLossConfig(), PPOClipLossConfig()):
        losses, sums = computed(logs(0.5, 0.2), logs(0.5, 0.2), [2.0, -0.5], config)
        assert losses == [-2.0, 0.5]
        names = ("mismatch_kl", "is_masked", "is_masked_high", "is_masked_low")
        assert sums == dict.fromkeys(names, 0.0)


def test_the_cross_entropy_does_not_read_the_samplers_probabilities() -> None:
    # −ln .5 = .693147 and −ln .2 = 1.609438; the second with the weight .5. A gradient of −A / p each.
    now = torch.tensor([0.5, 0.2], requires_grad=True)
    inputs = LossInputs(now.log(), logs(0.01, 0.99), torch.tensor([1.0, 0.5]))
    losses, sums = total_loss(inputs, torch.zeros(2), CrossEntropyLossConfig())
    assert losses.tolist() == pytest.approx([0.693147, 0.804719], abs=1e-6)
    assert float(sums["is_masked"]) == 0
    [gradient] = torch.autograd.grad(losses.sum(), now)
    assert gradient.tolist() == pytest.approx([-2.0, -2.5])


def test_ratio_and_kl_by_hand() -> None:
    # Ratio 0.6 / 0.5 = 1.2 with advantage 2: -2.4; KL term 0.1 * ln(1.2)^2.
    losses, sums = computed(logs(0.6), logs(0.5), [2.0], DefaultLossConfig(kl_tau=0.1))
    log_ratio = math.log(1.2)
    assert losses == pytest.approx([-2.4 + 0.1 * log_ratio**2], abs=1e-6)
    assert sums["mismatch_kl"] == pytest.approx(1.2 - log_ratio - 1, abs=1e-6)


@pytest.mark.parametrize(
    ("now", "then", "advantage", "dropped"),
    [
        (0.8, 0.5, 1.0, "is_masked_high"),  # rose by 0.3, should rise: far enough
        (0.2, 0.5, 1.0, None),  # fell, should rise
        (0.2, 0.5, -1.0, "is_masked_low"),  # fell by 0.3, should fall: far enough
        (0.8, 0.5, -1.0, None),  # rose, should fall
        (0.69, 0.5, 1.0, None),  # within the bound
    ],
)
def test_trust_region(now: float, then: float, advantage: float, dropped: str | None) -> None:
    losses, sums = computed(logs(now), logs(then), [advantage], DefaultLossConfig(kl_tau=0.0))
    expected = 0.0 if dropped else -advantage * now / then
    assert losses == pytest.approx([expected], abs=1e-6)
    assert [n for n, v in sums.items() if n.startswith("is_masked_") and v] == (
        [dropped] if dropped else []
    )
    assert bool(sums["is_masked"]) == bool(dropped)


def test_ipo_leaves_out_what_moved_far_in_either_direction() -> None:
    """Threshold 0.1: 0.5 to 0.65 and to 0.35 are too far, 0.5 to 0.55 is not: -1 · 0.55 / 0.5 = -1.1."""
    losses, sums = computed(
        logs(0.65, 0.35, 0.55), logs(0.5, 0.5, 0.5), [-1.0, 1.0, 1.0], IPOLossConfig(kl_tau=0.0)
    )
    assert losses == pytest.approx([0.0, 0.0, -1.1], abs=1e-6)
    assert sums["is_masked"] == 2


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "dropped"),
    [
        (1.5, 2.0, -2 * 1.28, 1),  # rose beyond 1.28: no more gain
        (1.25, 2.0, -2 * 1.25, 0),
        (0.5, 2.0, -2 * 0.5, 0),  # fell although it should rise: no bound
        (0.5, -1.0, 0.8, 1),  # fell below 0.8: no more gain
        (0.9, -1.0, 0.9, 0),
        (1.5, -1.0, 1.5, 0),  # rose although it should fall: no bound
    ],
)
def test_ppo_clip_by_hand(ratio: float, advantage: float, loss: float, dropped: int) -> None:
    config = PPOClipLossConfig(clip_low=0.2, clip_high=0.28)
    losses, sums = computed(logs(0.5 * ratio), logs(0.5), [advantage], config)
    assert losses == pytest.approx([loss], abs=1e-6)
    assert sums["is_masked"] == dropped


def test_a_group_may_have_its_own_upper_bound() -> None:
    """The first entry may rise to 1.3, the second to 1.2; the lower bound is the setting's for both."""
    losses, _ = computed(
        logs(0.8, 0.8), logs(0.5, 0.5), [1.0, 1.0], PPOClipLossConfig(), clip_high=[0.3, 0.2]
    )
    assert losses == pytest.approx([-1.3, -1.2], abs=1e-6)


def test_the_gradient_is_the_policy_gradient() -> None:
    # d/dθ of -A·ρ at ρ = 1 is -A · d log π.
    for config in (DefaultLossConfig(), IPOLossConfig(), PPOClipLossConfig()):
        logprobs = logs(0.5, 0.25).requires_grad_()
        inputs = LossInputs(logprobs, logprobs.detach(), torch.tensor([3.0, -2.0]))
        losses, _ = total_loss(inputs, torch.zeros(2), config)
        (gradient,) = torch.autograd.grad(losses.sum(), logprobs)
        assert gradient.tolist() == [-3.0, 2.0]


def test_cross_entropy_by_hand() -> None:
    loss = cross_entropy(logs(0.25, 0.1))
    assert loss.item() == pytest.approx(math.log(4) + math.log(10), abs=1e-6)


def test_normalizations_by_hand() -> None:
    """Three samples with 1, 2 and 5 trained tokens."""
    counts = [1, 2, 5]
    assert token_weights(counts, DefaultLossConfig()) == [1 / 8] * 3
    by_sequence = token_weights(counts, DefaultLossConfig(normalization="sequence"))
    assert by_sequence == pytest.approx([1 / 3, 1 / 6, 1 / 15])
    constant = DefaultLossConfig(normalization="constant", normalization_tokens=10)
    assert token_weights(counts, constant) == pytest.approx([1 / 30] * 3)


def test_a_constant_needs_its_number() -> None:
    for loss in ({"normalization": "constant"}, {"normalization_tokens": 5}):
        with pytest.raises(ConfigError, match="need each other"):
            train.load(SETTINGS, {"trainer": {"loss": loss}})


@pytest.mark.parametrize(
    ("estimator", "wanted"),
    [
        ("kl", [0.5, -0.5, 30.0]),
        ("abs", [0.5, 0.5, 30.0]),
        ("mse", [0.125, 0.125, 450.0]),
        # e^-.5 + .5 - 1 = .10653; e^.5 - .5 - 1 = .14872; e^-20 + 20 - 1 = 19, cut to 10.
        ("low_var_kl", [0.106531, 0.148721, 10.0]),
    ],
)
def test_kl_estimators_by_hand(estimator: Any, wanted: list[float]) -> None:
    found = KL[estimator](torch.tensor([0.5, -0.5, 30.0]))
    assert found.tolist() == pytest.approx(wanted, abs=1e-5)


def test_terms_by_hand() -> None:
    """On policy with A = 1: -1. Entropy .5 at .1: -.05. x = ln 2 - 0: mse ln²2 / 2 at .3."""
    inputs = LossInputs(
        logs(0.5),
        logs(0.5),
        torch.tensor([1.0]),
        {"reference": logs(0.25), "kl_coefficient": torch.tensor([0.3])},
    )
    config = DefaultLossConfig(entropy_coefficient=0.1)
    losses, _ = total_loss(inputs, torch.tensor([0.5]), config, "mse")
    squared = math.log(2) ** 2 / 2
    assert losses.tolist() == pytest.approx([-1.05 + 0.3 * squared], abs=1e-6)


def test_the_full_divergence_in_the_loss_by_hand() -> None:
    """π = (½, ½) and the reference (¼, ¾): ½ ln 2 + ½ ln ⅔ = .1438 nats, at .3; the policy's term is -1."""
    divergence = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    assert divergence == pytest.approx(0.143841, abs=1e-6)
    inputs = LossInputs(
        logs(0.5),
        logs(0.5),
        torch.tensor([1.0]),
        {"reference": logs(0.25), "kl_coefficient": torch.tensor([0.3])},
        divergence=torch.tensor([divergence]),
    )
    losses, _ = total_loss(inputs, torch.zeros(1), DefaultLossConfig(), "full")
    assert losses.tolist() == pytest.approx([-1 + 0.3 * divergence], abs=1e-6)
    with pytest.raises(ValueError, match="whole predictions"):
        total_loss(replace(inputs, divergence=None), torch.zeros(1), DefaultLossConfig(), "full")


def test_the_full_penalty_alone_pulls_the_policy_to_the_reference(
    small: Policy, folder: Path
) -> None:
    """Advantages are 0, so that nothing but the penalty trains."""
    other = policies.load(folder)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weights in other.model.parameters():
            weights.mul_(1 + 0.3 * torch.randn(weights.shape, generator=generator))
    reference, ids = FrozenModel(other, 100), [5, 6, 7, 8, 9, 10]
    arrays = {"reference": [0.0] * 6, "kl_coefficient": [2.0] * 6}
    sample = Sample(ids, [False] + [True] * 5, [-3.0] * 6, 0.0, 0.5, arrays=arrays)
    with torch.no_grad():
        ours, theirs = (
            (one.model(torch.tensor([ids])).logits[0, :-1].double() / 0.5).log_softmax(-1)
            for one in (small, other)
        )
    wanted = (ours.exp() * (ours - theirs)).sum(-1)
    [found] = divergences(small, reference, [sample], 100)
    assert found == pytest.approx(wanted.tolist(), rel=1e-4)
    config = DefaultLossConfig(kl_tau=0.0)
    trainer = Trainer(small, AdamWConfig(lr=1e-3), loss=config, kl="full", reference=reference)
    losses = [trainer.step([sample])["loss"] for _ in range(5)]
    assert losses[0] == pytest.approx(2 * float(wanted.mean()), rel=1e-4)
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]


def entropy_of(policy: Policy, ids: list[int]) -> float:
    with torch.no_grad():
        return float(token_statistics(policy.model, torch.tensor([ids]))[1][0, 1:].mean())


def test_an_entropy_bonus_alone_raises_the_entropy(small: Policy) -> None:
    """Advantages are 0, so that nothing but the bonus trains; without it nothing does."""
    ids = [5, 6, 7, 8]
    sample = Sample(ids, [False, True, True, True], [0.0, -3.0, -3.0, -3.0], 0.0, 1.0)
    before = entropy_of(small, ids)
    config = DefaultLossConfig(kl_tau=0.0, entropy_coefficient=0.5)
    report = Trainer(small, AdamWConfig(lr=0.0), loss=config).step([sample])
    assert report["loss"] == pytest.approx(-0.5 * before, rel=1e-4)
    Trainer(small, AdamWConfig(lr=1e-3), loss=config).step([sample])
    assert entropy_of(small, ids) > before
    assert Trainer(small, AdamWConfig(lr=1e-3)).step([sample])["updated"] == 0.0


def test_the_trainer_weighs_samples_as_the_loss_says(small: Policy) -> None:
    """Replies of 1 and of 3 tokens with advantages 1 and -1, on policy: by token (-1 + 3) / 4, by sequence
    (-1 + 1) / 2, by constant (-1 + 3) / (2 · 4)."""
    ids = [[5, 6], [5, 7, 8, 9]]
    with torch.no_grad():
        logprobs = [
            token_statistics(small.model, torch.tensor([one]))[0][0].tolist() for one in ids
        ]
    samples = [
        Sample(one, [False] + [True] * (len(one) - 1), own, a, 1.0)
        for one, own, a in zip(ids, logprobs, (1.0, -1.0), strict=True)
    ]
    for more, wanted in (
        ({}, 0.5),
        ({"normalization": "sequence"}, 0.0),
        ({"normalization": "constant", "normalization_tokens": 4}, 0.25),
    ):
        config = DefaultLossConfig.model_validate(more)
        report = Trainer(small, AdamWConfig(lr=0.0), loss=config).step(samples)
        assert report["loss"] == pytest.approx(wanted, abs=1e-5)
