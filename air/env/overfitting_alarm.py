"""Warns if the validation scores of a task rise faster than its test scores during training: agents, which
see only validation scores, then overfit the validation split of the data.

φ is a normalised score. At its end, an episode has one artefact (result of the agent) that counts. The gap of
the episode is φ of this artefact's validation score minus φ of its test score. Each process watches only its
own episodes. A constant gap causes no warning, because one of the two splits may simply be harder.
"""

from __future__ import annotations

import logging
import math
from statistics import fmean, variance

WINDOW = 32
"""The mean gap of the latest `WINDOW` episodes of a task is compared with that of as many episodes before.
(The gap is the normalised validation score minus the normalised test score.)"""
LEAST = 0.1
"""A warning needs at least this increase of the mean gap (the normalised validation score minus the
normalised test score)."""
# verifiers' servers show the messages of loggers below their own name.
_LOG = logging.getLogger("verifiers.v1.air.gap")


class OverfittingAlarm:
    """Logs a warning when agents overfit the validation split of a task. For each task, stores the gaps of
    the latest episodes (the normalised validation score φ minus the normalised test score), and warns when
    their mean has grown."""

    def __init__(self) -> None:
        self._gaps: dict[str, list[float]] = {}

    def note(self, task: str, gap: float) -> None:
        """Stores the gap of an episode of `task`: the normalised validation score φ minus the normalised test
        score. Logs a warning if the mean gap of the latest `WINDOW` episodes is clearly larger than that of
        the `WINDOW` episodes before (see `grown`). After a warning, only the latest `WINDOW` gaps are kept,
        so that later gaps are compared with these."""
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
    """Returns by how much the gaps of a task have grown: the mean of the last `WINDOW` gaps minus the mean of
    the gaps before. `gaps`, oldest first, has for each episode the normalised validation score φ minus the
    normalised test score.

    Returns 0 if there are fewer than `2 * WINDOW` gaps, or if the difference is at most `LEAST` or at most
    three standard errors.
    """
    if len(gaps) < 2 * WINDOW:
        return 0.0
    before, after = gaps[:-WINDOW], gaps[-WINDOW:]
    growth = fmean(after) - fmean(before)
    error = math.sqrt(variance(before) / len(before) + variance(after) / len(after))
    return growth if growth > max(LEAST, 3 * error) else 0.0
