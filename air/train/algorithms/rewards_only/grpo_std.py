"""The algorithm GRPO as published: rewards are centred and divided by their standard deviation in the group.

    A_i = (r_i − mean(r)) / (std(r) + 1e-6)          std: n − 1 in the denominator

From Shao et al. 2024 (arXiv 2402.03300). In a group of size 1, the mean counts as 0 and the standard
deviation as 1, as in AgentFly and verl (`compute_grpo_outcome_advantage`). If only one episode of a larger
group has a reward, because all others ended with an infrastructure error, its advantage is 0. In groups that
are very easy or very hard, rewards hardly differ; the division gives these groups as much weight as all
others (Liu et al. 2025, arXiv 2503.20783).

With segments, mean(r) is the mean of the episodes' mean rewards, and std(r) is the standard deviation over
all segments of the group. The standard deviation of the episodes' means would not work, because it can be 0
although the segments of each episode differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from air.train.algorithms.base import Algorithm, AlgorithmConfig
from air.train.algorithms.episode_baselines import FromRewards, Rewards, centered, mean, segments

EPSILON = 1e-6
"""The number that is added to the standard deviation, so that a group of equal rewards causes no division by
0."""


class GRPOStdConfig(AlgorithmConfig):
    """Settings of GRPO as published: an episode's advantage is its reward minus the group's mean reward,
    divided by the standard deviation of the group's rewards."""

    type: Literal["grpo_std"] = "grpo_std"
    """The name of the algorithm."""

    def build(self) -> Algorithm:
        """Returns a new algorithm with these settings."""
        return GRPOStd(grpo_std)


class GRPOStd(FromRewards):
    """The algorithm `grpo_std`: GRPO with division by the standard deviation of the group's rewards. If the
    episodes are divided into segments, this is the standard deviation of all segment rewards of the group."""

    def segments(self, rewards: Rewards) -> list[list[float]]:
        """Returns the advantages of all segments in a group: a list for each episode, empty for an episode
        that is None in `rewards`. An advantage is the segment's reward minus the mean of the episodes' mean
        rewards, divided by the standard deviation of all segment rewards of the group."""
        every = [reward for parts in rewards for reward in parts or ()]
        factor = 1 / (_deviation(every, len(rewards)) + EPSILON)
        return [[factor * a for a in of_episode] for of_episode in segments(rewards, centered)]


def grpo_std(rewards: Sequence[float | None]) -> list[float]:
    """Returns one advantage for each episode of a group: its reward minus the mean reward, divided by the
    standard deviation of the rewards. In a group of one episode, the advantage is the reward itself (divided
    by 1 + 1e-6). In a larger group, it is 0 for an episode without a reward (None), and for the only episode
    with a reward. Raises ValueError if a reward is not finite."""
    scored = [r for r in rewards if r is not None]
    distances = centered(rewards)
    deviation = _deviation(scored, len(rewards))
    return [distance / (deviation + EPSILON) for distance in distances]


def _deviation(scored: Sequence[float], episodes: int) -> float:
    """Returns the unbiased standard deviation of `scored`, the rewards of the group's episodes that have one;
    0 if there are fewer than two. Returns 1 if `episodes`, the number of all episodes in the group, is 1."""
    if episodes == 1:
        return 1.0
    if len(scored) < 2:
        return 0.0
    center = mean(scored)
    return math.sqrt(math.fsum((r - center) ** 2 for r in scored) / (len(scored) - 1))
