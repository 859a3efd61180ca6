"""Computes normalised scores φ: 0 is the task's baseline, 1 is its target, and higher is better.

The task's setting `normalise` chooses the formula that computes φ(s) from a score s:

    linear    φ(s) = (s − baseline) / (target − baseline)
    log-gap   φ(s) = (g(s) − g(baseline)) / (g(target) − g(baseline)),  g(s) = −log10 |s − optimum|
    none      φ(s) = s if higher is better, −s if lower is better

φ(s) is then limited to a range (`clip`). With `log-gap`, halving the distance to the optimum always raises φ
by the same amount.
"""

from __future__ import annotations

import math
from typing import Literal, Protocol

Direction = Literal["higher", "lower"]
Normalise = Literal["linear", "log-gap", "none"]


class Scale(Protocol):
    """The interface of the settings that define how a task's scores are normalised;
    `air.tasks.spec.RewardScale` is such a class. `normalise` names the formula, whose inputs are the scores
    `baseline`, `target` and `optimum` and the `direction` (which scores are better). `phi_clip` is the range
    to which the normalised score φ is limited. Changes of φ below a noise floor earn no reward: the larger of
    `noise_floor` and `noise_sigmas` standard errors of the change."""

    @property
    def direction(self) -> Direction: ...
    @property
    def baseline(self) -> float: ...
    @property
    def target(self) -> float: ...
    @property
    def optimum(self) -> float | None: ...
    @property
    def normalise(self) -> Normalise: ...
    @property
    def noise_floor(self) -> float: ...
    @property
    def noise_sigmas(self) -> float: ...
    @property
    def phi_clip(self) -> tuple[float, float]: ...


def phi(
    score: float,
    *,
    baseline: float,
    target: float,
    direction: Direction,
    normalise: Normalise = "linear",
    optimum: float | None = None,
    clip: tuple[float, float] = (-1.0, 2.0),
) -> float:
    """Returns the normalised score φ of a task's `score`, limited to the range `clip`. Higher is better.

    `normalise` names the formula. With "linear", φ is 0 at the score `baseline`, 1 at `target`, and linear in
    between. "log-gap" is linear in the logarithm of the distance to `optimum`, the best possible score,
    instead. With "none", φ is the score itself, or its negative if `direction` is "lower". Raises ValueError
    if the score is not finite; with "linear", if the target equals the baseline; with "log-gap", if there is
    no optimum, or if the distances of baseline and target from the optimum are equal or one of them is 0.
    """
    if not math.isfinite(score):
        raise ValueError(f"a score must be finite, got {score}")
    if normalise == "none":
        value = score if direction == "higher" else -score
    elif normalise == "linear":
        if target == baseline:
            raise ValueError("target equals baseline")
        value = (score - baseline) / (target - baseline)
    else:
        if optimum is None:
            raise ValueError("log-gap needs an optimum")
        value = _log_gap(score, baseline, target, optimum)
    return min(max(value, clip[0]), clip[1])


def phi_on(scale: Scale, score: float) -> float:
    """Returns the normalised score φ of the unnormalised `score`, according to the settings `scale` of a
    task."""
    return phi(
        score,
        baseline=scale.baseline,
        target=scale.target,
        direction=scale.direction,
        normalise=scale.normalise,
        optimum=scale.optimum,
        clip=scale.phi_clip,
    )


def phi_error(scale: Scale, score: float, stderr: float) -> float:
    """Returns the standard error of φ(s), the normalised score, for a score s with standard error `stderr`:
    |dφ/ds| · stderr.

        linear    |dφ/ds| = 1 / |target − baseline|
        log-gap   |dφ/ds| = 1 / (ln 10 · |s − optimum| · |g(target) − g(baseline)|)
        none      |dφ/ds| = 1

    Here g(s) = −log10 |s − optimum|. The estimate, which is of first order, is capped at the width of
    `scale.phi_clip`. Raises ValueError if `stderr` is negative or NaN, or `log-gap` lacks an optimum.
    """
    if not stderr >= 0:
        raise ValueError(f"a standard error is at least 0, got {stderr}")
    if stderr == 0:
        return 0.0
    width = scale.phi_clip[1] - scale.phi_clip[0]
    if scale.normalise == "none":
        return min(stderr, width)
    if scale.normalise == "linear":
        return min(stderr / abs(scale.target - scale.baseline), width)
    optimum = scale.optimum
    if optimum is None:
        raise ValueError("log-gap needs an optimum")
    gains = abs(_gain(scale.target, optimum) - _gain(scale.baseline, optimum))
    slope = math.log(10) * abs(score - optimum) * gains
    return min(stderr / slope, width) if slope else width


def _log_gap(score: float, baseline: float, target: float, optimum: float) -> float:
    start, goal = _gain(baseline, optimum), _gain(target, optimum)
    if not math.isfinite(start) or not math.isfinite(goal) or start == goal:
        raise ValueError(
            "baseline and target must have different, finite distances from the optimum"
        )
    return (_gain(score, optimum) - start) / (goal - start)


def _gain(score: float, optimum: float) -> float:
    gap = abs(score - optimum)
    return math.inf if gap == 0 else -math.log10(gap)
