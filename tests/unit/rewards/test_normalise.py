"""Normalised scores on numbers worked by hand."""

from __future__ import annotations

import math

import pytest

from air.rewards.normalise import phi, phi_on
from air.tasks.spec import RewardScale


@pytest.mark.parametrize(
    ("score", "expected"),
    [(0.6, 0.0), (0.8, 1.0), (0.7, 0.5), (0.5, -0.5), (0.9, 1.5), (0.2, -1.0), (1.0, 2.0)],
)
def test_linear(score: float, expected: float) -> None:
    value = phi(score, baseline=0.6, target=0.8, direction="higher")
    assert value == pytest.approx(expected)


def test_linear_where_lower_is_better() -> None:
    """A loss that falls from 4 to 3 on the way to 2 is half way."""
    given = {"baseline": 4.0, "target": 2.0, "direction": "lower"}
    assert phi(4.0, **given) == 0.0  # type: ignore[arg-type]
    assert phi(3.0, **given) == 0.5  # type: ignore[arg-type]
    assert phi(5.0, **given) == -0.5  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        (0.9, 0.0),  # gap 0.1, the baseline's
        (0.99, 0.5),  # gap 0.01: g = 2, baseline's 1, target's 3
        (0.999, 1.0),
        (0.0, -0.5),  # gap 1: g = 0
        (1.0, 2.0),  # no gap: clipped
        (1.01, 0.5),  # beyond the optimum counts by distance too
    ],
)
def test_log_gap(score: float, expected: float) -> None:
    value = phi(
        score,
        baseline=0.9,
        target=0.999,
        direction="higher",
        normalise="log-gap",
        optimum=1.0,
    )
    assert value == pytest.approx(expected)


def test_log_gap_at_a_lower_optimum() -> None:
    """Errors of 8, 4, 2, 1 with optimum 0: each halving is worth a third."""
    values = [
        phi(s, baseline=8, target=1, direction="lower", normalise="log-gap", optimum=0.0)
        for s in (8.0, 4.0, 2.0, 1.0)
    ]
    assert values == pytest.approx([0, 1 / 3, 2 / 3, 1])


def test_none_only_turns_and_clips() -> None:
    given = {"baseline": 1.0, "target": 2.0, "normalise": "none", "clip": (-10.0, 10.0)}
    assert phi(3.0, direction="higher", **given) == 3.0  # type: ignore[arg-type]
    assert phi(3.0, direction="lower", **given) == -3.0  # type: ignore[arg-type]
    assert phi(30.0, direction="lower", **given) == -10.0  # type: ignore[arg-type]


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
def test_a_score_must_be_finite(score: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        phi(score, baseline=0, target=1, direction="higher")


def test_scales_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="target equals baseline"):
        phi(1.0, baseline=1, target=1, direction="higher")
    with pytest.raises(ValueError, match="optimum"):
        phi(1.0, baseline=1, target=2, direction="higher", normalise="log-gap")
    for baseline, target in ((3, 2), (2, 3), (2, 4)):
        with pytest.raises(ValueError, match="distances"):
            phi(
                1.0,
                baseline=baseline,
                target=target,
                direction="higher",
                normalise="log-gap",
                optimum=3.0,
            )


def test_phi_on_takes_everything_from_the_scale() -> None:
    scale = RewardScale(direction="lower", baseline=4, target=2, phi_clip=(-0.25, 0.75))
    assert [phi_on(scale, s) for s in (4.0, 3.0, 1.0, 9.0)] == [0.0, 0.5, 0.75, -0.25]
