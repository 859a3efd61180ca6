"""Computes the advantages of segments and of turns from baselines in which each episode has equal weight.

A group has G episodes of one prompt. Episode i has n_i parts (segments or turns), which earned r_i1 … r_in.
`advantage` is the estimator of the group (for `grpo`: x_i − mean(x)):

    segments        m_i = mean of r_i1 … r_in           A_ik = advantage(m)_i + r_ik − m_i
    reward_to_go    R_it = r_it + r_i,t+1 + …           A_it = advantage(R_·t)_i

With `grpo` a segment's baseline is (1/G) Σ_i m_i. (prime-rl takes the mean over all segments of the group,
which weighs an episode by n_i.) A turn's baseline is then the mean of R_it over the group, in which an
episode that has ended counts as 0. It does not depend on the action, so it does not change the gradient's
mean (Williams 1992). Rewards before a turn do not count (Sutton and Barto 2018, 13.3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from air.train.algorithms import Estimator

Rewards = Sequence[Sequence[float] | None]
"""The rewards of one group: for each episode the rewards of its parts, in order, or None for an episode that
is masked (not trained) because of an infrastructure error."""


def segments(rewards: Rewards, estimator: Estimator) -> list[list[float]]:
    """Returns the advantages of all segments in a group: a list for each episode, empty if it is masked.
    `estimator` gets the mean reward of each episode. Raises ValueError if a reward is not finite, or an
    episode has no segment."""
    if any(parts is not None and not parts for parts in rewards):
        raise ValueError("an episode has at least one part")
    means = [None if parts is None else math.fsum(parts) / len(parts) for parts in rewards]
    advantages: list[list[float]] = []
    for parts, mean, advantage in zip(rewards, means, estimator(means), strict=True):
        if parts is None or mean is None:
            advantages.append([])
        else:
            advantages.append([advantage + (reward - mean) for reward in parts])
    return advantages


def reward_to_go(rewards: Rewards, estimator: Estimator) -> list[list[float]]:
    """Returns the advantages of all turns in a group: a list for each episode, empty if it is masked.
    For each turn, `estimator` gets the sum of the rewards that each episode earned from that turn on. Raises
    ValueError if a reward is not finite."""
    longest = max((len(parts) for parts in rewards if parts is not None), default=0)
    result: list[list[float]] = [[] for _ in rewards]
    for turn in range(longest):
        sums = [None if parts is None else math.fsum(parts[turn:]) for parts in rewards]
        for parts, advantages, advantage in zip(rewards, result, estimator(sums), strict=True):
            if parts is not None and turn < len(parts):
                advantages.append(advantage)
    return result
