"""The algorithm RLOO (leave-one-out): an episode's advantage is its reward minus the mean of the others'
rewards.

    A_i = r_i − mean(r without r_i) = n/(n − 1) · (r_i − mean(r))

From Kool et al. 2019 ("Buy 4 REINFORCE samples, get a baseline for free"), used for language models by
Ahmadian et al. 2024 (arXiv 2402.14740). n is the number of episodes with a reward. If n is 1, the advantage
is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from air.train.algorithms.base import Algorithm, AlgorithmConfig
from air.train.algorithms.episode_baselines import FromRewards, mean, over_scored


class RLOOConfig(AlgorithmConfig):
    """Settings of RLOO: an episode's advantage is its reward minus the mean reward of the group's other
    episodes."""

    type: Literal["rloo"] = "rloo"
    """The name of the algorithm."""

    def build(self) -> Algorithm:
        """Returns a new algorithm with these settings."""
        return FromRewards(rloo)


def rloo(rewards: Sequence[float | None]) -> list[float]:
    """Returns one advantage for each episode of a group: its reward minus the mean reward of the other
    episodes. The advantage is 0 for an episode without a reward (None), and for the only episode with a
    reward. Raises ValueError if a reward is not finite."""

    def formula(scored: Sequence[float]) -> list[float]:
        n, center = len(scored), mean(scored)
        return [n / (n - 1) * (r - center) if n > 1 else 0.0 for r in scored]

    return over_scored(rewards, formula)
