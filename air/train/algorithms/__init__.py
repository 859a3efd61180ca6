"""Advantage estimators: pure functions that turn the rewards of a group of episodes into advantages.

The module `imported` loads an estimator from outside air, which `[embedded.estimator]` in a run file names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from air.train.algorithms.grpo import grpo

Estimator = Callable[[Sequence[float | None]], list[float]]
"""A function that turns the rewards of one group into advantages: one for each episode, in the same order.

A reward is None if the episode has none because of an infrastructure error; its advantage is not used.
"""

ESTIMATORS: dict[str, Estimator] = {"grpo": grpo}
"""Maps each value that `orchestrator.algo.type` may have in a run file to its estimator."""

__all__ = ["ESTIMATORS", "Estimator", "grpo"]
