from __future__ import annotations

import math

import pytest
import torch

from air.train.algorithms.loss import cross_entropy, default_loss
from air.train.config.model_options import DefaultLossConfig


def logs(*probabilities: float) -> torch.Tensor:
    return torch.tensor(probabilities).log()


def test_on_policy_loss_is_minus_the_advantages() -> None:
    loss, sums = default_loss(
        logs(0.5, 0.2), logs(0.5, 0.2), torch.tensor([2.0, -0.5]), DefaultLossConfig()
    )
    assert loss.item() == pytest.approx(-1.5)
    assert {name: float(v) for name, v in sums.items()} == {
        "mismatch_kl": 0.0,
        "is_masked": 0.0,
        "is_masked_high": 0.0,
        "is_masked_low": 0.0,
    }


def test_ratio_and_kl_by_hand() -> None:
    # Ratio 0.6 / 0.5 = 1.2 with advantage 2: -2.4; KL term 0.1 * ln(1.2)^2.
    config = DefaultLossConfig(kl_tau=0.1)
    loss, sums = default_loss(logs(0.6), logs(0.5), torch.tensor([2.0]), config)
    log_ratio = math.log(1.2)
    assert loss.item() == pytest.approx(-2.4 + 0.1 * log_ratio**2, abs=1e-6)
    assert sums["mismatch_kl"].item() == pytest.approx(1.2 - log_ratio - 1, abs=1e-6)


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
    loss, sums = default_loss(
        logs(now),
        logs(then),
        torch.tensor([advantage]),
        DefaultLossConfig(kl_tau=0.0),
    )
    expected = 0.0 if dropped else -advantage * now / then
    assert loss.item() == pytest.approx(expected, abs=1e-6)
    assert [n for n, v in sums.items() if n.startswith("is_masked_") and v] == (
        [dropped] if dropped else []
    )
    assert bool(sums["is_masked"]) == bool(dropped)


def test_the_gradient_is_the_policy_gradient() -> None:
    # d/dθ of -A·ρ at ρ = 1 is -A · d log π.
    logprobs = logs(0.5, 0.25).requires_grad_()
    loss, _ = default_loss(
        logprobs,
        logprobs.detach(),
        torch.tensor([3.0, -2.0]),
        DefaultLossConfig(),
    )
    (gradient,) = torch.autograd.grad(loss, logprobs)
    assert gradient.tolist() == [-3.0, 2.0]


def test_cross_entropy_by_hand() -> None:
    loss = cross_entropy(logs(0.5, 0.25, 0.1)[None], torch.tensor([[False, True, True]]))
    assert loss.item() == pytest.approx(math.log(4) + math.log(10), abs=1e-6)
