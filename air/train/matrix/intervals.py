"""Computes the 95 % confidence intervals in the results of `air matrix` and `air coevolve`: Student's t for a
mean, Wilson's score for a share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from typing import Literal

LEVEL = 0.95
"""The confidence level of all intervals."""
_Z = NormalDist().inv_cdf((1 + LEVEL) / 2)


@dataclass(frozen=True)
class Interval:
    """A value with its 95 % confidence interval."""

    value: float
    low: float | None
    """The lower bound. `low` and `high` are None if the value comes from a single number other than 0 or
    1."""
    high: float | None
    method: Literal["t over seeds", "t over episodes", "wilson", "none"]
    """How the interval was computed: Student's t over the seeds' means or over the episodes, Wilson's score
    interval, or no interval."""


def interval(by_seed: Sequence[Sequence[float]]) -> Interval | None:
    """Returns the mean of the seeds' means, with its 95 % confidence interval. `by_seed` has a list for each
    training seed, with one value for each episode. Returns None if there is no value.

    With two seeds or more, the interval is Student's t over the seeds' means, which vary with the training
    and with the episodes. With one seed, or if the seeds' means are all equal, the interval is over the
    episodes: Wilson's if all values are 0 or 1, else Student's t.
    """
    seeds = [values for values in by_seed if values]
    if not seeds:
        return None
    means = [fmean(values) for values in seeds]
    if len(set(means)) > 1:
        half = _half_width(means)
        return _bounded(seeds, fmean(means), half, "t over seeds")
    every = [value for values in seeds for value in values]
    if set(every) <= {0.0, 1.0}:
        low, high = wilson(round(sum(every)), len(every))
        return Interval(fmean(every), low, high, "wilson")
    if len(every) < 2:
        return Interval(every[0], None, None, "none")
    return _bounded(seeds, fmean(every), _half_width(every), "t over episodes")


def _bounded(
    seeds: Sequence[Sequence[float]],
    value: float,
    half: float,
    method: Literal["t over seeds", "t over episodes"],
) -> Interval:
    """Returns the interval `value` ± `half`, computed by `method`. If all values in `seeds` (lists with one
    value per episode) are 0 or 1, so that `value` is a share, the bounds are limited to the range from 0 to
    1."""
    low, high = value - half, value + half
    if all(one in (0.0, 1.0) for values in seeds for one in values):
        low, high = max(0.0, low), min(1.0, high)
    return Interval(value, low, high, method)


def _half_width(values: Sequence[float]) -> float:
    return t_quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))


def wilson(successes: int, count: int) -> tuple[float, float]:
    """Returns the lower and the upper bound of Wilson's 95 % score interval for a share: `successes` in
    `count` independent trials."""
    share, square = successes / count, _Z**2
    middle = (share + square / (2 * count)) / (1 + square / count)
    half = _Z * math.sqrt(share * (1 - share) / count + square / (4 * count**2))
    half /= 1 + square / count
    return max(0.0, middle - half), min(1.0, middle + half)


def t_quantile(freedom: int) -> float:
    """Returns the 97.5 % quantile t of Student's t distribution with `freedom` degrees of freedom: the
    absolute value of the variable is larger than t with probability 5 %. The quantile is 12.706 for one
    degree of freedom, and 4.303 for two."""
    low, high = 0.0, 100.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < LEVEL else (low, middle)
    return (low + high) / 2


def _within(t: float, freedom: int) -> float:
    """Returns the probability that Student's t with `freedom` degrees of freedom is between −t and t. Uses
    the finite series for integer degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan2(t, math.sqrt(freedom))
    square = math.cos(angle) ** 2
    if freedom % 2:
        term, total = math.cos(angle), 0.0
        for k in range(2, freedom, 2):
            total += term
            term *= square * k / (k + 1)
        return 2 / math.pi * (angle + math.sin(angle) * total)
    term, total = 1.0, 0.0
    for k in range(1, freedom, 2):
        total += term
        term *= square * k / (k + 1)
    return math.sin(angle) * total
