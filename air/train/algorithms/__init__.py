"""Advantage estimators: pure functions that turn the rewards of a group of episodes into advantages.

A run file may name an estimator from outside this package under `[embedded.estimator]` (`imported.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from air.train.algorithms.grpo import grpo

Estimator = Callable[[Sequence[float | None]], list[float]]
"""Takes the rewards of one group, one for each episode; None stands for an episode that has no reward because
of an infrastructure failure. Returns one advantage for each episode, in the same order; the advantage of an
episode without a reward is not used."""

ESTIMATORS: dict[str, Estimator] = {"grpo": grpo}
"""Maps a value of `orchestrator.algo.type` in a run file to its estimator."""

__all__ = ["ESTIMATORS", "Estimator", "grpo"]
