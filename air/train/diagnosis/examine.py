"""Runs all checks over the lines of a run's `metrics.jsonl`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from air.train.diagnosis import learning, weights, work
from air.train.diagnosis.finding import Finding
from air.train.diagnosis.limits import LIMITS
from air.train.diagnosis.series import Row

Check = Callable[[Sequence[Row], int], Finding | None]
"""Looks for one known way to go wrong; the number is that of the steps that means are over."""
ALWAYS: tuple[Check, ...] = (
    weights.stale_weights,
    weights.mismatch,
    work.failed_episodes,
    work.failures_on_one_task,
)
"""The checks that a few steps are enough for."""
TRENDS: tuple[Check, ...] = (
    learning.no_spread,
    learning.entropy_collapse,
    learning.growing_kl,
    learning.gradient_spikes,
    learning.lost_format,
    learning.validation_leaves_test,
    work.starving_source,
    work.cut_episodes,
    work.bottleneck,
)
"""The checks that compare the last steps with the first, or need several."""


def names(*, short: bool = False) -> list[str]:
    """Returns what the checks look for, in words; `short`: only those that a few steps are enough for."""
    checks = ALWAYS + (() if short else TRENDS)
    return [check.__name__.replace("_", " ") for check in checks]


def examine(rows: Sequence[Row]) -> list[Finding]:
    """Returns what the checks report, earliest first; an empty list for a healthy run."""
    window = LIMITS.window(len(rows))
    checks = ALWAYS + (TRENDS if len(rows) >= LIMITS.fewest_steps else ())
    findings = [finding for check in checks if (finding := check(rows, window)) is not None]
    return sorted(findings, key=lambda finding: finding.step)
