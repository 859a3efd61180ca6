"""Warns if validation scores of a task rise above its test scores: the agent may overfit the validation
split.

The gap of an episode is φ (the normalised validation score) of the artefact that counts, less φ of its test
score. Each process watches its own episodes. A constant gap is not a warning sign, because the two splits are
never equally hard.
"""

from __future__ import annotations

import logging
import math
from statistics import fmean, variance

WINDOW = 32
"""The number of a task's latest episodes that are compared with the same number of episodes before them."""
LEAST = 0.1
"""The smallest growth of the mean gap that causes a warning."""
# verifiers' servers show the messages of loggers below their own name.
_LOG = logging.getLogger("verifiers.v1.air.gap")


class GapAlarm:
    """Keeps the gaps of the latest episodes of each task, and warns when their mean has grown."""

    def __init__(self) -> None:
        self._gaps: dict[str, list[float]] = {}

    def note(self, task: str, gap: float) -> None:
        """Adds the gap of an episode of `task`. After a warning, the next comparison begins anew."""
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
    """Returns by how much the mean of the last `WINDOW` gaps exceeds the mean of the gaps before them.

    Returns 0 if the growth can be chance: at most three standard errors of the difference, or at most
    `LEAST`.
    """
    if len(gaps) < 2 * WINDOW:
        return 0.0
    before, after = gaps[:-WINDOW], gaps[-WINDOW:]
    growth = fmean(after) - fmean(before)
    error = math.sqrt(variance(before) / len(before) + variance(after) / len(after))
    return growth if growth > max(LEAST, 3 * error) else 0.0
