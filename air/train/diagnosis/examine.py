"""Runs all checks for known problems of a training run, on the lines of the run's `metrics.jsonl`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

from air import json_lines
from air.train.algorithms import AlgoConfig, AlgorithmConfig
from air.train.diagnosis import episodes, learning, sampler_checks
from air.train.diagnosis.finding import Finding
from air.train.diagnosis.series import Row
from air.train.diagnosis.thresholds import LIMITS

Check = Callable[[Sequence[Row], int], Finding | None]
"""The type of a check: a function that looks for one known problem of a training run. Its arguments are the
lines of `metrics.jsonl`, and the number of steps over which means are taken. It returns a finding, or None if
it does not find the problem."""
ALWAYS: tuple[Check, ...] = (
    sampler_checks.stale_weights,
    sampler_checks.mismatch,
    episodes.failed_episodes,
    episodes.failures_on_one_task,
    episodes.ungraded_task,
)
"""The checks that run on every training run, even if it has only a few steps."""
TRENDS: tuple[Check, ...] = (
    learning.no_spread,
    learning.no_update,
    learning.entropy_collapse,
    learning.growing_kl,
    learning.gradient_spikes,
    learning.gradient_growth,
    learning.lost_format,
    learning.validation_leaves_test,
    episodes.starving_source,
    episodes.cut_episodes,
    episodes.bottleneck,
)
"""The checks that run only if the training run has at least `LIMITS.fewest_steps` steps, because they need
several steps, for example to compare the last steps with the first."""

SPREAD_CHECKS: tuple[Check, ...] = (learning.no_spread, episodes.starving_source)
"""The checks that concern only algorithms that learn nothing from groups with equal rewards."""


def needs_spread(run: Path) -> bool:
    """Whether the algorithm of the training run in the folder `run` learns nothing from groups (episodes of
    one task that are compared) with equal rewards. Reads the algorithm from the folder's `config.json`.
    Returns True if this file cannot be read, or if the run file configures a user's own estimator of
    advantages."""
    try:
        config = json_lines.parsed((run / "config.json").read_bytes()) or {}
    except OSError:
        return True
    if (config.get("embedded") or {}).get("estimator"):
        return True
    name = ((config.get("orchestrator") or {}).get("algo") or {}).get("type")
    algorithms: tuple[type[AlgorithmConfig], ...] = get_args(get_args(AlgoConfig)[0])
    return all(one.needs_spread for one in algorithms if one.model_fields["type"].default == name)


def names(*, short: bool = False) -> list[str]:
    """Returns the names of the checks in words, such as `entropy collapse`. If `short` is true, returns only
    the names of the checks in `ALWAYS`."""
    checks = ALWAYS + (() if short else TRENDS)
    return [check.__name__.replace("_", " ") for check in checks]


def examine(rows: Sequence[Row], *, needs_spread: bool = True) -> list[Finding]:
    """Runs the checks on `rows`, the lines of `metrics.jsonl`, and returns the findings, sorted by the step
    when the problem began. The list is empty for a healthy run. `needs_spread` says whether the algorithm
    learns nothing from groups with equal rewards; if it is false, the checks in `SPREAD_CHECKS` do not
    run."""
    window = LIMITS.window(len(rows))
    checks = ALWAYS + (TRENDS if len(rows) >= LIMITS.fewest_steps else ())
    checks = tuple(check for check in checks if needs_spread or check not in SPREAD_CHECKS)
    findings = [finding for check in checks if (finding := check(rows, window)) is not None]
    return sorted(findings, key=lambda finding: finding.step)
