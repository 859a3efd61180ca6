"""The algorithm GRPO as published: rewards are centred and divided by their standard deviation in the group.

    A_i = (r_i − mean(r)) / (std(r) + 1e-6)          std: n − 1 in the denominator

From Shao et al. 2024 (arXiv 2402.03300). As in AgentFly and verl (`compute_grpo_outcome_advantage`), a group
of one episode has the mean 0 and the standard deviation 1. The division gives groups whose rewards hardly
differ, which are very easy or very hard, as much weight as all others (Liu et al. 2025, arXiv 2503.20783).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from air.train.algorithms.base import Algorithm, AlgorithmConfig
from air.train.algorithms.episode_baselines import FromRewards, mean, over_scored

EPSILON = 1e-6
"""Added to the standard deviation, so that equal rewards do not divide by 0."""


class GRPOStdConfig(AlgorithmConfig):
    """GRPO as published: the reward minus the group's mean reward, divided by the standard deviation."""

    type: Literal["grpo_std"] = "grpo_std"
    """The name of the algorithm."""

    def build(self) -> Algorithm:
        """Returns the algorithm."""
        return FromRewards(grpo_std, slope=lambda scored: 1 / (moments(scored)[1] + EPSILON))


def grpo_std(rewards: Sequence[float | None]) -> list[float]:
    """Returns one advantage for each episode of a group; 0 for episodes without a reward (None).
    Raises ValueError if a reward is not finite."""

    def formula(scored: Sequence[float]) -> list[float]:
        center, deviation = moments(scored)
        return [(r - center) / (deviation + EPSILON) for r in scored]

    return over_scored(rewards, formula)


def moments(scored: Sequence[float]) -> tuple[float, float]:
    """Returns the mean and the unbiased standard deviation; 0 and 1 for fewer than two values."""
    if len(scored) < 2:
        return 0.0, 1.0
    center = mean(scored)
    return center, math.sqrt(math.fsum((r - center) ** 2 for r in scored) / (len(scored) - 1))
