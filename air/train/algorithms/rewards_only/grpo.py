"""The algorithm GRPO: an episode's advantage is its reward minus the mean reward of its group.

    A_i = r_i − mean(r)

As in prime-rl 0.8, `prime_rl/orchestrator/algo/grpo.py`: GRPO of Shao et al. 2024 (arXiv 2402.03300) without
the division by the standard deviation, which Liu et al. 2025 (arXiv 2503.20783) found biased to easy groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from air.train.algorithms.base import Algorithm, AlgorithmConfig
from air.train.algorithms.episode_baselines import FromRewards, mean, over_scored


class GRPOConfig(AlgorithmConfig):
    """GRPO without division by the standard deviation: the reward minus the mean reward of the group."""

    type: Literal["grpo"] = "grpo"
    """The name of the algorithm."""

    def build(self) -> Algorithm:
        """Returns the algorithm."""
        return FromRewards(grpo)


def grpo(rewards: Sequence[float | None]) -> list[float]:
    """Returns one advantage for each episode of a group: its reward minus the mean reward of the group.
    Episodes without a reward (None) do not count and get 0. Raises ValueError if a reward is not finite."""

    def formula(scored: Sequence[float]) -> list[float]:
        center = mean(scored)
        return [r - center for r in scored]

    return over_scored(rewards, formula)
