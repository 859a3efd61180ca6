"""Delta rewards worked by hand, and that they telescope."""

from __future__ import annotations

import random
from typing import Literal

import pytest

from air.rewards.delta import Counts, DeltaReward, Mode, delta, validate_that_counts
from air.rewards.normalise import phi_on
from air.tasks.spec import RewardScale

SCALE = RewardScale(direction="higher", baseline=0.5, target=1.0)


def deltas(scores: list[float], mode: Mode, scale: RewardScale = SCALE) -> list[float]:
    pay = DeltaReward(scale, mode=mode)
    return [pay(score).delta for score in scores]


def test_previous_pays_moves_both_ways() -> None:
    """φ: 0.5, 0.3, 1.0."""
    assert deltas([0.75, 0.65, 1.0], "previous") == pytest.approx([0.5, -0.2, 0.7])


def test_best_pays_only_what_is_new() -> None:
    assert deltas([0.75, 0.65, 1.0], "best") == pytest.approx([0.5, 0.0, 0.5])
    assert deltas([0.4, 0.45, 0.5], "best") == [0.0, 0.0, 0.0]


def test_lower_is_better_is_paid_for_falling() -> None:
    scale = RewardScale(direction="lower", baseline=4, target=2)
    assert deltas([3.0, 3.5, 2.0], "previous", scale) == pytest.approx([0.5, -0.25, 0.75])
    assert deltas([3.0, 3.5, 2.0], "best", scale) == pytest.approx([0.5, 0.0, 0.5])


def test_the_clip_is_put_on_before_deltas_are_taken() -> None:
    """0.0 and −5.0 are both φ = −1; so is neither's difference paid."""
    assert deltas([0.0, -5.0, 0.5], "previous") == pytest.approx([-1.0, 0.0, 1.0])


def test_moves_under_the_floor_wait_until_they_exceed_it_together() -> None:
    """φ: 0.04, 0.08, 0.12, 0.06 with a floor of 0.1: only the third is far enough from 0."""
    scale = RewardScale(direction="higher", baseline=0, target=1, noise_floor=0.1)
    scores = [0.04, 0.08, 0.12, 0.06]
    assert deltas(scores, "previous", scale) == pytest.approx([0.0, 0.0, 0.12, 0.0])
    assert deltas(scores, "best", scale) == pytest.approx([0.0, 0.0, 0.12, 0.0])


def test_noise_under_the_floor_cannot_be_farmed() -> None:
    scale = RewardScale(direction="higher", baseline=0, target=1, noise_floor=0.1)
    rng = random.Random(0)
    noisy = [0.5 + rng.uniform(-0.04, 0.04) for _ in range(100)]
    for mode in ("previous", "best"):
        assert sum(deltas(noisy, mode, scale)) == pytest.approx(noisy[0])


@pytest.mark.parametrize("mode", ["previous", "best"])
@pytest.mark.parametrize("floor", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("direction", ["higher", "lower"])
def test_deltas_telescope(mode: Mode, floor: float, direction: str) -> None:
    """Their sum is the last paid φ (or the best) whatever lies between, within one floor of it."""
    target = 3.0 if direction == "higher" else -1.0
    scale = RewardScale(direction=direction, baseline=1, target=target, noise_floor=floor)  # type: ignore[arg-type]
    rng = random.Random(7)
    for _ in range(50):
        scores = [rng.uniform(-3, 5) for _ in range(rng.randint(1, 12))]
        phis = [phi_on(scale, score) for score in scores]
        total = sum(deltas(scores, mode, scale))
        reached = phis[-1] if mode == "previous" else max(0.0, *phis)
        assert abs(total - reached) <= max(floor, 1e-9)
        assert total == pytest.approx(0.0) or any(abs(total - phi) < 1e-9 for phi in phis)


@pytest.mark.parametrize("mode", ["previous", "best"])
def test_the_same_score_again_earns_nothing(mode: Mode) -> None:
    assert deltas([0.8, 0.8, 0.8], mode)[1:] == [0.0, 0.0]


def test_delta_is_exact_at_the_floor() -> None:
    assert delta(0.5, 0.25, mode="previous", noise_floor=0.25) == 0.25
    assert delta(0.25, 0.5, mode="previous", noise_floor=0.25) == -0.25
    assert delta(0.25, 0.5, mode="best", noise_floor=0.25) == 0.0
    assert delta(0.4, 0.25, mode="previous", noise_floor=0.25) == 0.0


@pytest.mark.parametrize(
    ("scores", "counts", "direction", "index"),
    [
        ([0.75, 0.9, 0.65], "last", "higher", 2),
        ([0.75, 0.9, None], "last", "higher", 2),
        ([0.75, 0.9, 0.65], "best", "higher", 1),
        ([0.75, 0.9, 0.65], "best", "lower", 2),
        ([0.75, 0.9, 0.9, None], "best", "higher", 1),
        ([None, -3.0, None], "best", "higher", 1),
        ([None, None], "best", "higher", 1),
        ([], "best", "higher", None),
        ([], "last", "higher", None),
    ],
)
def test_which_artefact_counts(
    scores: list[float | None],
    counts: Counts,
    direction: Literal["higher", "lower"],
    index: int | None,
) -> None:
    """The first of equally good ones; the last one if none has a score."""
    assert validate_that_counts(scores, counts, direction) == index


def test_without_normalisation_the_first_delta_starts_at_the_baseline() -> None:
    scale = RewardScale(
        direction="lower", baseline=5, target=1, normalise="none", phi_clip=(-100, 100)
    )
    assert deltas([3.0, 4.0], "previous", scale) == [2.0, -1.0]
