"""Advantage estimators: pure functions from the rewards of a group to advantages, one file each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from air.train.algorithms.grpo import grpo

Estimator = Callable[[Sequence[float | None]], list[float]]
"""Rewards of one group (None: masked) to advantages, in the same order."""

ESTIMATORS: dict[str, Estimator] = {"grpo": grpo}
"""By the name that a run file gives in `orchestrator.algo.type`."""

__all__ = ["ESTIMATORS", "Estimator", "grpo"]
