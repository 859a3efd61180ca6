"""Warns if the validation scores of a task rise faster than its test scores: agents then overfit the
validation split.

The gap of an episode is the normalised validation score φ of the artefact that counts, minus φ of its test
score. Each process watches only its own episodes. A constant gap causes no warning, because one of the two
splits may simply be harder.
"""

from __future__ import annotations

import logging
import math
from statistics import fmean, variance

WINDOW = 32
"""The number of latest episodes of a task whose gaps (φ of the validation score minus φ of the test score)
are compared with those of as many episodes before."""
LEAST = 0.1
"""The smallest increase of the mean gap (validation φ minus test φ) that causes a warning."""
# verifiers' servers show the messages of loggers below their own name.
_LOG = logging.getLogger("verifiers.v1.air.gap")


class OverfittingAlarm:
    """Stores the gaps (φ of the validation score minus φ of the test score) of each task's latest episodes,
    and logs a warning when their mean has grown, because agents then overfit the validation split."""

    def __init__(self) -> None:
        self._gaps: dict[str, list[float]] = {}

    def note(self, task: str, gap: float) -> None:
        """Adds the gap (φ of the validation score minus φ of the test score) of an episode of `task`, and
        warns if the mean gap has grown. After a warning, later episodes are compared with the latest `WINDOW`
        gaps."""
        gaps = self._gaps.setdefault(task, [])
        gaps.append(gap)
        del gaps[: -2 * WINDOW]
        growth = grown(gaps)
        if growth:
            del gaps[:-WINDOW]
            _LOG.warning(
                "task %s: validation scores have risen by φ %.2f more than test scores: agents overfit the "
                'validation split; `final = "holdout"` pays for test scores',
                task,
                growth,
            )


def grown(gaps: list[float]) -> float:
    """Returns by how much the gaps of a task (φ of the validation score minus φ of the test score, oldest
    first) have grown: the mean of the last `WINDOW` gaps minus the mean of the gaps before.

    Returns 0 if there are too few gaps, or if the difference is at most three standard errors or at most
    `LEAST`.
    """
    if len(gaps) < 2 * WINDOW:
        return 0.0
    before, after = gaps[:-WINDOW], gaps[-WINDOW:]
    growth = fmean(after) - fmean(before)
    error = math.sqrt(variance(before) / len(before) + variance(after) / len(after))
    return growth if growth > max(LEAST, 3 * error) else 0.0
