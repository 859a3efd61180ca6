"""Computes performance profiles, and the area under each profile (AUP), with which the benchmark MLGym
compares methods. A method is one model in one run.

On each task, a method m has a ratio r. With `best` as the best feasible score on that task, including the
baseline:

    r = best / score   if higher is better
    r = score / best   if lower is better

A score is infeasible if it is missing, negative, or worse than the baseline. Its r is 1.05 times the worst
feasible ratio on that task. A score whose r would not be finite, because the score or the best score is zero,
gets the same r.

    ρ_m(τ) = share of tasks with log10 r ≤ τ
    AUP_m  = left Riemann sum of ρ_m over 500 values of τ, evenly from 0 to τ_max
    τ_max  = log10(max over tasks of ⌈1.05 · worst feasible r⌉), rounded up to a tenth

A task on which no score is feasible, not even the baseline's, has no ratios, and is left out for all methods.
Profiles: Dolan and Moré, "Benchmarking optimization software with performance profiles", 2002; AUP: Nathani
and others, "MLGym", 2025.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Direction = Literal["higher", "lower"]
BASELINE = "baseline"
"""The name, in all profiles, of an additional method whose score on each task is the task's baseline
score."""
MARGIN = 1.05
POINTS = 500


@dataclass(frozen=True)
class TaskScores:
    """The scores of all methods (models in runs) on one task, and the task's baseline and direction."""

    direction: Direction
    baseline: float
    scores: Mapping[str, float | None]
    """The score of each method by the method's name, without `baseline`. None or absent: the method has no
    score."""


@dataclass(frozen=True)
class Ratios:
    """The ratios of all methods, including the baseline, on one task: r = best / score (score / best if lower
    is better). A ratio says how much worse than the best score a method's score is: 1 is equal, higher is
    worse."""

    by_method: Mapping[str, float]
    infeasible: frozenset[str]
    """The methods whose score is infeasible (missing, negative, or worse than the baseline) or has no finite
    ratio. Their ratio is 1.05 times `worst`."""
    worst: float
    """The highest ratio of a feasible score on this task. A ratio compares a score with the best one: 1 is
    equal, higher is worse."""


@dataclass(frozen=True)
class Profiles:
    """The performance profiles of all methods across tasks, and the areas under them."""

    taus: Sequence[float]
    """The 500 values of τ at which the profiles are computed, evenly from 0. At τ, a profile is the share of
    tasks with log10 r ≤ τ; the ratio r compares a method's score with the best score (1: equal; higher:
    worse)."""
    rho: Mapping[str, Sequence[float]]
    """Each method's profile, by the method's name: for each τ in `taus`, the share of tasks with log10 r ≤ τ.
    The ratio r compares the method's score with the best score (1: equal; higher: worse)."""
    aup: Mapping[str, float]
    """The area under each method's profile, by the method's name."""
    ratios: Mapping[str, Ratios]
    """The ratios on each task, by the task's name. A ratio compares a method's score with the best score (1:
    equal; higher: worse)."""
    left_out: Sequence[str]
    """The tasks that are left out of the profiles, because no method has a feasible score on them (see
    `feasible`)."""


def feasible(score: float | None, baseline: float, direction: Direction) -> bool:
    """Returns whether a score is feasible, that is, it exists, is not negative, and is no worse than
    `baseline`. `direction` says whether higher or lower scores are better."""
    if score is None or score < 0:
        return False
    return score >= baseline if direction == "higher" else score <= baseline


def ratios(task: TaskScores, methods: Sequence[str]) -> Ratios | None:
    """Returns, for one task, the ratios best / score (score / best if lower is better) of `methods` and of
    the baseline. Returns None if no score is feasible: all are missing, negative, or worse than the
    baseline."""
    scores = {BASELINE: task.baseline, **{m: task.scores.get(m) for m in methods}}
    usable = {
        method: score
        for method, score in scores.items()
        if score is not None and feasible(score, task.baseline, task.direction)
    }
    if not usable:
        return None
    best = (max if task.direction == "higher" else min)(usable.values())
    finite = {
        method: value
        for method, score in usable.items()
        if math.isfinite(value := _ratio(score, best, task.direction))
    }
    worst = max(finite.values())
    return Ratios(
        by_method={method: finite.get(method, worst * MARGIN) for method in scores},
        infeasible=frozenset(scores) - frozenset(finite),
        worst=worst,
    )


def _ratio(score: float, best: float, direction: Direction) -> float:
    if score == best:
        return 1.0  # also for 0/0
    above, below = (best, score) if direction == "higher" else (score, best)
    return above / below if below else math.inf


def share(ratios: Sequence[float], tau: float) -> float:
    """Returns ρ(τ), the value of a method's performance profile at `tau`: the share of the method's `ratios`
    r (one per task; 1 is the best) with log10 r ≤ τ."""
    return sum(math.log10(r) <= tau for r in ratios) / len(ratios)


def tau_max(worst: Sequence[float]) -> float:
    """Returns τ_max, the largest τ of a profile: log10 of the highest ⌈1.05 · r⌉ over all r in `worst`,
    rounded up to a tenth. `worst` contains, for each task, the highest ratio r of a feasible score."""
    return math.ceil(10 * math.log10(max(math.ceil(r * MARGIN) for r in worst))) / 10


def area(rho: Sequence[float], taus: Sequence[float]) -> float:
    """Returns the area under a performance profile: the sum of `rho[i] · (taus[i + 1] − taus[i])`. `taus` are
    the ascending values of τ, and `rho[i]` is the profile's value at `taus[i]`."""
    return sum(rho[i] * (taus[i + 1] - taus[i]) for i in range(len(taus) - 1))


def profiles(tasks: Mapping[str, TaskScores], methods: Sequence[str]) -> Profiles:
    """Computes the performance profiles and their areas (AUP) of `methods` and the baseline over all tasks.

    Raises ValueError if a method has the name `baseline`.
    """
    if BASELINE in methods:
        raise ValueError(f"a method cannot be called {BASELINE!r}")
    by_task = {name: ratios(task, methods) for name, task in tasks.items()}
    by_name = {name: one for name, one in by_task.items() if one is not None}
    left_out = [name for name, one in by_task.items() if one is None]
    if not by_name:
        return Profiles(taus=[], rho={}, aup={}, ratios={}, left_out=left_out)
    end = tau_max([one.worst for one in by_name.values()])
    taus = [end * i / (POINTS - 1) for i in range(POINTS)]
    rho = {
        method: [share([one.by_method[method] for one in by_name.values()], tau) for tau in taus]
        for method in (BASELINE, *methods)
    }
    aup = {method: area(values, taus) for method, values in rho.items()}
    return Profiles(taus=taus, rho=rho, aup=aup, ratios=by_name, left_out=left_out)
