"""The algorithm MaxRL: an advantage is the reward minus the mean reward of the group, divided by this mean.

    A_i = (r_i − mean(r)) / mean(r)          0 if mean(r) ≤ 0

As in prime-rl 0.8, `prime_rl/orchestrator/algo/max_rl.py`, after arXiv 2602.02710. With rewards of 0 and 1
and groups of n episodes, the expected gradient is that of log p expanded to order n, where p is the
probability of success. So a prompt that rarely succeeds has a weight of about 1/p. Rewards should not be
negative: if rewards have both signs, their mean can be close to 0, and the advantages become arbitrarily
large, as in prime-rl. A KL penalty can make rewards negative, so it is allowed only in the loss
(`embedded.kl.place`), not in the reward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from air.train.algorithms.base import Algorithm, AlgorithmConfig
from air.train.algorithms.episode_baselines import FromRewards, mean, over_scored


class MaxRLConfig(AlgorithmConfig):
    """Settings of MaxRL: an episode's advantage is its reward minus the group's mean reward, divided by this
    mean. The algorithm is meant for rewards of 0 and 1."""

    penalties_in_reward: ClassVar[bool] = False

    type: Literal["max_rl"] = "max_rl"
    """The name of the algorithm."""

    def build(self) -> Algorithm:
        """Returns a new algorithm with these settings."""
        return FromRewards(max_rl, slope=_slope)


def max_rl(rewards: Sequence[float | None]) -> list[float]:
    """Returns one advantage for each episode of a group: its reward minus the mean reward, divided by this
    mean. All advantages are 0 if the mean is not positive; episodes without a reward (None) get 0. Raises
    ValueError if a reward is not finite."""

    def formula(scored: Sequence[float]) -> list[float]:
        center, slope = mean(scored), _slope(scored)
        return [slope * (r - center) for r in scored]

    return over_scored(rewards, formula)


def _slope(scored: Sequence[float]) -> float:
    center = mean(scored)
    return 0.0 if center <= 0 else 1 / center
