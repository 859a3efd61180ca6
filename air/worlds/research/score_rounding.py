"""Rounds the scores that an agent sees, so that they reveal little about single rows of the hidden data.

An agent that saw exact scores could infer the hidden labels by many small changes of its artefact, the files
that are graded. Rewards still use exact scores.
"""

from __future__ import annotations

import math

from air.tasks.spec import TaskSpec

OLD_STEP = 0.0001
"""The rounding step of the scores in old trajectories, which do not record their rounding step."""


def step_of(task: TaskSpec) -> float:
    """Returns the step to which a task's scores are rounded before the agent sees them. This is the task's
    setting `told_step` or, without this setting, the largest power of ten that is at most a tenth of the
    distance from the baseline score to the target score. For a distance of 0.3 it is 0.01. If the task's
    `normalise` is `log-gap`, the distance from the target to the optimum counts instead if it is smaller."""
    if task.told_step is not None:
        return task.told_step
    width = abs(task.target - task.baseline)
    if task.normalise == "log-gap" and task.optimum is not None:
        width = min(width, abs(task.target - task.optimum))
    return 10.0 ** math.floor(math.log10(width / 10))


def score_text(score: float, step: float) -> str:
    """Returns a score, rounded to a multiple of `step`, as text: `0.82` for the score 0.8237 and the step
    0.01."""
    decimals = max(0, -math.floor(math.log10(step)))
    if step != 10.0**-decimals:
        score -= math.remainder(score, step)  # the quotient of a huge score would overflow
    return f"{score:.{decimals}f}"
