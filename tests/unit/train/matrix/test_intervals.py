"""Confidence intervals, against numbers of printed tables and worked by hand."""

from __future__ import annotations

import math

import pytest

from air.train.matrix.intervals import interval, t_quantile, wilson


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (10, 2.228), (30, 2.042), (100, 1.984)],
)  # fmt: skip
def test_quantiles_are_those_of_the_table(freedom: int, quantile: float) -> None:
    assert t_quantile(freedom) == pytest.approx(quantile, abs=5e-4)


def test_wilsons_interval() -> None:
    """Of no success in ten it is 0 to z²/(n + z²); of half it lies symmetric."""
    square = 1.959964**2
    low, high = wilson(0, 10)
    assert (low, high) == pytest.approx((0.0, square / (10 + square)), abs=1e-6)
    low, high = wilson(50, 100)
    half = math.sqrt(square / 400 + (square / 200) ** 2) / (1 + square / 100)
    assert (low, high) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-6)
    assert wilson(7, 10) == pytest.approx(tuple(1 - one for one in reversed(wilson(3, 10))))


def test_several_seeds_have_students_t_over_their_means() -> None:
    """Means 0.5, 0.25 and 0; standard deviation 0.25."""
    found = interval([[1.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0], [0.0, 0.0]])
    assert found is not None
    assert found.method == "t over seeds"
    assert found.value == pytest.approx(0.25)
    assert found.low == 0.0  # a share is not negative
    assert found.high == pytest.approx(0.25 + 4.302653 * 0.25 / math.sqrt(3), abs=1e-5)


def test_the_episodes_tell_if_the_seeds_do_not() -> None:
    one = interval([[1.0, 0.0, 0.0, 0.0]])
    assert one is not None
    assert (one.value, one.method) == (0.25, "wilson")
    assert (one.low, one.high) == wilson(1, 4)
    equal = interval([[0.0, 0.0], [0.0, 0.0], []])
    assert equal is not None
    assert (equal.low, equal.high, equal.method) == (*wilson(0, 4), "wilson")
    rewards = interval([[-1.0, 2.0]])
    assert rewards is not None
    assert rewards.method == "t over episodes"
    assert rewards.low == pytest.approx(0.5 - 12.7062 * 1.5, abs=1e-3)
    single = interval([[0.3]])
    assert single is not None
    assert (single.low, single.high) == (None, None)
    assert interval([[], []]) is None
