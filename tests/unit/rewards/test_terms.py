"""The other terms of a reward, on numbers worked by hand."""

from __future__ import annotations

import math

import pytest

from air.rewards import terms
from air.tasks.spec import RewardScale

RISING = RewardScale(direction="higher", baseline=0.5, target=1.0)
FALLING = RewardScale(direction="lower", baseline=4.0, target=2.0, phi_clip=(-0.5, 1.5))


@pytest.mark.parametrize("term", [terms.format_errors, terms.failed_validates])
def test_each_occasion_costs_the_weight(term: object) -> None:
    assert callable(term)
    assert [term(count, 0.25) for count in (0, 1, 3)] == [0.0, -0.25, -0.75]


@pytest.mark.parametrize(
    ("seconds", "cost"), [(0.0, 0.0), (30.0, -0.1), (60.0, -0.2), (120.0, -0.4), (500.0, -0.4)]
)
def test_time_costs_its_share_of_the_limit_and_never_more_than_all(
    seconds: float, cost: float
) -> None:
    assert terms.time_used(seconds, 120.0, 0.4) == pytest.approx(cost)


@pytest.mark.parametrize("given", [(1.0, 0.0), (1.0, -1.0), (-1.0, 9.0), (math.nan, 9.0)])
def test_what_is_no_share_of_a_limit_is_refused(given: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="share"):
        terms.time_used(*given, 1.0)


@pytest.mark.parametrize(
    ("score", "scale", "earned"),
    [
        (0.5, RISING, 0.0),
        (0.75, RISING, 1.0),  # half way, φ = 0.5
        (0.25, RISING, -1.0),  # φ = −0.5
        (9.0, RISING, 4.0),  # clipped at φ = 2
        (3.0, FALLING, 1.0),
        (5.0, FALLING, -1.0),
        (0.0, FALLING, 3.0),  # clipped at φ = 1.5
        (None, RISING, -2.0),
        (None, FALLING, -1.0),
    ],
)
def test_the_final_score_earns_by_its_normalised_value(
    score: float | None, scale: RewardScale, earned: float
) -> None:
    assert terms.final_score(score, scale, 2.0) == pytest.approx(earned)


def test_taking_a_bad_artefact_away_never_earns_anything() -> None:
    for scale in (RISING, FALLING):
        for score in (-100.0, 0.0, 0.5, 4.0, 100.0):
            kept, gone = (terms.final_score(s, scale, 1.0) for s in (score, None))
            assert gone <= kept


def test_without_weight_a_term_is_nothing() -> None:
    values = (
        terms.format_errors(3, 0.0),
        terms.failed_validates(3, 0.0),
        terms.time_used(9.0, 10.0, 0.0),
        terms.final_score(0.9, RISING, 0.0),
        terms.final_score(None, RISING, 0.0),
    )
    assert [str(value) for value in values] == ["0.0"] * 5  # not −0.0 either
