"""Advantage estimators: pure functions from the rewards of a group to advantages, one file each.

`[embedded.estimator]` of a run file names one from outside the package (`imported.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from air.train.algorithms.grpo import grpo

Estimator = Callable[[Sequence[float | None]], list[float]]
"""Takes the rewards of one group, one for each episode; None masks an episode that we failed to score.
Returns one advantage for each reward, in the same order; the advantage of a masked episode is not used."""

ESTIMATORS: dict[str, Estimator] = {"grpo": grpo}
"""By the name that a run file gives in `orchestrator.algo.type`."""

__all__ = ["ESTIMATORS", "Estimator", "grpo"]
