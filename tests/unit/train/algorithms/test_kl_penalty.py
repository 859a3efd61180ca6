"""The penalty for moving away from the reference, in reward and in loss, on numbers worked by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from air.train.algorithms import Credit, GRPOConfig, ScoredGroup, ScoredPart
from air.train.algorithms.kl_penalty import WithKL, adapted
from air.train.algorithms.rewards_only.reinforce_plus_plus import ReinforcePlusPlus
from air.train.config.loss_options import KLConfig


def group() -> ScoredGroup:
    """Rewards 1 and 0. The first part is at distances 0.5 and −0.5 from the reference, the second at 2."""
    return ScoredGroup(
        [
            [ScoredPart(1.0, 2, logprobs=[-1.0, -2.0], reference=[-1.5, -1.5])],
            [ScoredPart(0.0, 1, logprobs=[-1.0], reference=[-3.0])],
            None,
        ]
    )


def test_in_reward() -> None:
    """|x| at 0.1: rewards 1 − 0.1 and 0 − 0.2, so advantages ± 0.55. The mean of 0.5, 0.5 and 2 is 1."""
    algorithm = WithKL(GRPOConfig().build(), KLConfig(estimator="abs", coefficient=0.1))
    assert algorithm.needs == {"reference"}
    credits = algorithm.finish([group()], [algorithm(group())])
    assert [c.advantage for episode in credits[0] for c in episode] == pytest.approx([0.55, -0.55])
    assert algorithm.metrics() == {"reference_kl": 1.0, "kl_coefficient": 0.1}


@pytest.mark.parametrize("place", ["reward", "loss"])
def test_without_a_penalty_the_distance_is_still_measured(place: Any) -> None:
    """With the coefficient 0, the algorithm needs the reference for a metric. Its advantages stay."""
    config = KLConfig(estimator="abs", place=place, coefficient=0.0)
    algorithm = WithKL(GRPOConfig().build(), config)
    assert algorithm.needs == {"reference"}
    credits = algorithm.finish([group()], [algorithm(group())])
    assert [c.advantage for episode in credits[0] for c in episode] == pytest.approx([0.5, -0.5])
    assert algorithm.metrics() == {"reference_kl": 1.0, "kl_coefficient": 0.0}


def test_in_reward_each_token_pays_its_own() -> None:
    """Returns before whitening, |x| at 0.1: 1 − 0.05 − 0.05 and 1 − 0.05; 0 − 0.2."""
    algorithm = WithKL(ReinforcePlusPlus(1.0), KLConfig(estimator="abs", coefficient=0.1))
    (first,), (second,), masked = algorithm(group())
    assert first.advantage == pytest.approx([0.9, 0.95])
    assert second.advantage == pytest.approx([-0.2])
    assert masked == []


def test_in_loss() -> None:
    """The advantages stay; the loss gets the reference and the coefficient of each token."""
    config = KLConfig(estimator="mse", place="loss", coefficient=0.5)
    algorithm = WithKL(GRPOConfig().build(), config)
    credits = algorithm.finish([group()], [algorithm(group())])
    assert credits[0][0] == [
        Credit(0.5, arrays={"reference": [-1.5, -1.5], "kl_coefficient": [0.5, 0.5]})
    ]
    # x²/2 is 1/8, 1/8 and 2.
    assert algorithm.metrics()["reference_kl"] == pytest.approx(2.25 / 3)


@pytest.mark.parametrize("place", ["reward", "loss"])
def test_the_full_divergence_replaces_the_distance_of_the_sampled_token(place: Any) -> None:
    """Divergences of 0.5 and 0.5, and of 2, at 0.1, as if each token were at that distance."""
    scored = group()
    divergent = replace(
        scored,
        episodes=[
            [replace(part, divergence=[0.5, 0.5][: part.tokens] if part.tokens == 2 else [2.0])]
            for episode in scored.episodes
            for part in episode or ()
        ],
    )
    config = KLConfig(estimator="full", coefficient=0.1, place=place)
    algorithm = WithKL(GRPOConfig().build(), config)
    assert algorithm.needs == {"reference", "divergence"}
    credits = algorithm.finish([divergent], [algorithm(divergent)])
    wanted = [0.55, -0.55] if place == "reward" else [0.5, -0.5]
    assert [c.advantage for episode in credits[0] for c in episode] == pytest.approx(wanted)
    assert algorithm.metrics() == {"reference_kl": 1.0, "kl_coefficient": 0.1}
    with pytest.raises(ValueError, match="needs the divergence"):
        algorithm(scored)


def test_a_coefficient_by_hand() -> None:
    """n / horizon = 0.5: twice the target gives 1 + 0.2 · 0.5; 10 % less, 1 − 0.1 · 0.5."""
    assert adapted(1e-3, error=1.0, share=0.5) == pytest.approx(1.1e-3)
    assert adapted(1e-3, error=-0.1, share=0.5) == pytest.approx(0.95e-3)
    assert adapted(1e-3, error=-0.9, share=0.5) == pytest.approx(0.9e-3)


def test_a_short_horizon_cannot_make_the_coefficient_negative() -> None:
    """n / horizon = 10: 1 − 0.2 · 10 is −1, and 1 + 0.2 · 10 is 3; the bounds are 0.5 and 2."""
    assert adapted(1e-3, error=-1.0, share=10) == pytest.approx(0.5e-3)
    assert adapted(1e-3, error=1.0, share=10) == pytest.approx(2e-3)
    with pytest.raises(ValueError, match="set coefficient above 0"):
        KLConfig(coefficient=0.0, target=0.1)


def test_a_horizon_without_a_target_is_refused() -> None:
    with pytest.raises(ValueError, match="horizon has no effect without target"):
        KLConfig(horizon=100)
    assert KLConfig(horizon=100, target=0.1).horizon == 100


def test_the_coefficient_follows_the_target_and_is_in_checkpoints() -> None:
    """The mean |x| is 1, the target 0.5: error 1, cut to 0.2; two episodes of a horizon of 4: factor 1.1."""
    config = KLConfig(estimator="abs", coefficient=0.1, target=0.5, horizon=4)
    algorithm = WithKL(GRPOConfig().build(), config)
    algorithm.finish([group()], [algorithm(group())])
    assert algorithm.coefficient == pytest.approx(0.11)
    assert algorithm.metrics()["kl_coefficient"] == 0.1  # that of the step
    resumed = WithKL(GRPOConfig().build(), config)
    resumed.load_state_dict(algorithm.state_dict())
    resumed.finish([group()], [resumed(group())])
    assert resumed.coefficient == pytest.approx(0.121)


def test_the_defaults_are_those_of_agentfly() -> None:
    """The coefficient 1e-3 and the horizon 1e4, with AgentFly's target, 0.1. The mean |x| is 1: error 9, cut
    to 0.2. Two episodes: 1e-3 · (1 + 0.2 · 2 / 1e4) = 1e-3 · 1.00004. The first reward is 1 − 1e-3 · 1, the
    second 0 − 1e-3 · 2: advantages ± (0.999 + 0.002) / 2."""
    algorithm = WithKL(GRPOConfig().build(), KLConfig(estimator="abs", target=0.1))
    credits = algorithm.finish([group()], [algorithm(group())])
    advantages = [c.advantage for episode in credits[0] for c in episode]
    assert advantages == pytest.approx([0.5005, -0.5005], rel=1e-9)
    assert algorithm.coefficient == pytest.approx(0.00100004, rel=1e-12)
    assert (KLConfig().target, KLConfig().estimator) == (None, "low_var_kl")
