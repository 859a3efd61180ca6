"""The measured noise floor, worked by hand."""

from __future__ import annotations

import math

import pytest

from air.rewards.delta import DeltaReward
from air.rewards.normalise import phi_error, phi_on
from air.tasks.spec import RewardScale

LINEAR = RewardScale(direction="lower", baseline=4, target=2)
LOG_GAP = RewardScale(
    direction="lower", baseline=8, target=2, optimum=0, normalise="log-gap", phi_clip=(-1, 3)
)
NONE = RewardScale(direction="lower", baseline=4, target=2, normalise="none", phi_clip=(-10, 0))
SIGMAS = RewardScale(direction="higher", baseline=0, target=10, noise_floor=0.05, noise_sigmas=2)


@pytest.mark.parametrize(
    ("scale", "score", "stderr", "error"),
    [
        (LINEAR, 3.0, 0.5, 0.25),  # per |2 − 4|
        (LINEAR, 99.0, 0.5, 0.25),
        (LINEAR, 3.0, 60.0, 3.0),  # the clip is 3 wide
        (NONE, 3.0, 0.5, 0.5),
        (NONE, 3.0, 60.0, 10.0),
        (
            LOG_GAP,
            4.0,
            0.1,
            0.1 / (4 * math.log(4)),
        ),  # g(2) − g(8) = log10 4; ln 10 · log10 4 = ln 4
        (LOG_GAP, 2.0, 0.1, 0.1 / (2 * math.log(4))),  # nearer to the optimum it weighs more
        (LOG_GAP, 0.0, 0.1, 4.0),  # at the optimum nothing is known but the clip
    ],
)
def test_the_error_of_a_normalised_score(
    scale: RewardScale, score: float, stderr: float, error: float
) -> None:
    assert phi_error(scale, score, stderr) == pytest.approx(error)
    assert phi_error(scale, score, 0.0) == 0.0


@pytest.mark.parametrize("scale", [LINEAR, LOG_GAP, NONE])
def test_to_first_order_it_is_what_the_score_moves_by(scale: RewardScale) -> None:
    moved = abs(phi_on(scale, 3.001) - phi_on(scale, 2.999)) / 2
    assert phi_error(scale, 3.0, 0.001) == pytest.approx(moved, rel=1e-5)


@pytest.mark.parametrize("stderr", [-0.1, math.nan])
def test_what_is_no_standard_error_is_refused(stderr: float) -> None:
    with pytest.raises(ValueError, match="standard error"):
        phi_error(LINEAR, 3.0, stderr)


def test_the_floor_grows_with_the_errors_of_both_ends_of_the_move() -> None:
    """φ is a tenth. From the baseline, which is exact: 2 · 0.15 = 0.30 exceeds 0.2, not 0.3.
    From 3.0 ± 1.5 to 8.0 ± 2.0: 2 · √(0.15² + 0.2²) = 0.5, just reached."""
    pay = DeltaReward(SIGMAS)
    missed, paid, more = pay(2.0, 1.5), pay(3.0, 1.5), pay(8.0, 2.0)
    assert (missed.floor, missed.delta) == (pytest.approx(0.3), 0.0)
    assert (paid.floor, paid.delta) == (pytest.approx(0.3), pytest.approx(0.3))
    assert (more.floor, more.delta) == (pytest.approx(0.5), pytest.approx(0.5))


def test_what_was_not_paid_leaves_the_anchors_error_where_it_was() -> None:
    """5.0 ± 0 is paid; 6.0 ± 4 is not (0.1 < 0.8), so 6.0 ± 0 then has the floor of 5.0 ± 0."""
    pay = DeltaReward(SIGMAS)
    assert [pay(5.0, 0.0).delta, pay(6.0, 4.0).delta] == pytest.approx([0.5, 0.0])
    last = pay(6.0, 0.0)
    assert (last.floor, last.delta) == (0.05, pytest.approx(0.1))


def test_the_declared_floor_holds_where_the_measured_one_is_lower() -> None:
    pay = DeltaReward(SIGMAS)
    assert (pay(0.4, 0.1).floor, pay(0.4, 0.1).delta) == (0.05, 0.0)
    assert pay(0.4).floor == 0.05


def test_without_sigmas_the_error_changes_nothing() -> None:
    scale = RewardScale(direction="higher", baseline=0, target=10)
    assert DeltaReward(scale)(1.0, 99.0).delta == pytest.approx(0.1)


@pytest.mark.parametrize("mode", ["previous", "best"])
def test_luck_cannot_be_farmed_whatever_the_mode(mode: str) -> None:
    """Scores that scatter within two standard errors of the move around one value earn it once."""
    pay = DeltaReward(SIGMAS, mode=mode)  # type: ignore[arg-type]
    first, *rest = [pay(5.0 + luck, 0.5).delta for luck in (0.0, 0.9, -0.9, 1.3, -1.3, 0.4)]
    assert first == pytest.approx(0.5)
    assert rest == [0.0] * 5
