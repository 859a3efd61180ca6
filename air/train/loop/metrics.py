"""What one step, or one evaluation, amounts to in numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from air.train.loop.rollout import Group, Rollout

_TIMES = ("model", "exec", "grading", "queue")


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of those that are there; None of none."""
    present = [v for v in values if v is not None]
    return fmean(present) if present else None


def of_step(groups: Sequence[Group]) -> dict[str, Any]:
    """Means over the step's episodes that ended well; counts over all of them."""
    rollouts = [r for g in groups for r in g.rollouts]
    good = [r for r in rollouts if r.ok]
    values: dict[str, Any] = {
        "episodes": len(rollouts),
        "failed_episodes": len(rollouts) - len(good),
        "groups": len(groups),
        "zero_spread_groups": sum(1 for g in groups if not g.has_spread),
        "sampled_tokens": sum(r.sampled_tokens for r in rollouts),
        "multi_branch_episodes": sum(1 for r in good if r.trace.num_branches != 1),
    }
    values |= of_rollouts(good)
    for name in _TIMES:
        values[f"seconds_{name}"] = sum(r.metric(f"seconds_{name}") or 0.0 for r in good)
    return values


def of_rollouts(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """Means over episodes: reward and what it is made of, validity, well-formedness, endings."""
    turns = sum(r.metric("turns") or 0 for r in rollouts)
    errors = sum(r.metric("format_errors") or 0 for r in rollouts)
    values = {
        "reward": mean(r.reward for r in rollouts),
        "valid": mean(r.metric("valid") for r in rollouts),
        "submitted": mean(r.metric("submitted") for r in rollouts),
        "validates": mean(r.metric("validates") for r in rollouts),
        "turns": mean(r.metric("turns") for r in rollouts),
        "well_formed": 1.0 - errors / turns if turns else None,
        "phi": mean(final_phi(r) for r in rollouts),
    }
    values |= {f"reward/{name}": value for name, value in terms(rollouts).items()}
    for name in ("context_ends", "cut_observations", "cut_replies"):
        values[name] = sum(r.metric(name) or 0 for r in rollouts)
    return values


def final_phi(rollout: Rollout) -> float | None:
    """The normalised score of an episode's last validate; None if that had none."""
    phis = rollout.info.get("phis", [])
    return phis[-1] if phis else None


def terms(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """The mean of each term of the reward over all episodes; the means add up to the mean reward."""
    each = [r.terms for r in rollouts]
    names = dict.fromkeys(name for terms in each for name in terms)
    return {name: fmean(terms.get(name, 0.0) for terms in each) for name in names}


def by_task(rollouts: Sequence[Rollout]) -> dict[str, list[Rollout]]:
    """Episodes by task id, in order of appearance."""
    tasks: dict[str, list[Rollout]] = {}
    for rollout in rollouts:
        tasks.setdefault(rollout.task, []).append(rollout)
    return tasks
