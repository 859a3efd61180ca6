"""Advantage estimators: pure functions that turn the rewards of a group of episodes into advantages.

A run file may also name an estimator from outside this package, in the table `[embedded.estimator]`; the
module `imported` loads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from air.train.algorithms.grpo import grpo

Estimator = Callable[[Sequence[float | None]], list[float]]
"""A function that turns the rewards of one group into advantages.

The function takes one reward for each episode, or None for an episode that has no reward because of an
infrastructure error. It returns one advantage for each episode, in the same order. The advantage of an
episode without a reward is not used."""

ESTIMATORS: dict[str, Estimator] = {"grpo": grpo}
"""Maps each value that `orchestrator.algo.type` may have in a run file to its estimator."""

__all__ = ["ESTIMATORS", "Estimator", "grpo"]
