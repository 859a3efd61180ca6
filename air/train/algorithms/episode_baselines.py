"""Computes the advantages of segments and of turns from baselines in which each episode has equal weight.

A group has G episodes of one prompt. Episode i has n_i parts (segments or turns), which earned r_i1 … r_in.
`advantage` is the estimator of the group (for `grpo`: x_i − mean(x)):

    segments        m_i = mean of r_i1 … r_in           A_ik = advantage(m)_i + r_ik − m_i
    reward_to_go    R_it = r_it + r_i,t+1 + …           A_it = advantage(R_·t)_i

So with `grpo` the baseline of a segment is (1/G) Σ_i m_i: each episode weighs the same, however many segments
it has. (prime-rl takes the mean over all segments of the group, which weighs an episode by n_i.)

The return of a turn is the sum R_it of its own and all later rewards. With `grpo` its baseline is the mean of
R_it over the group's episodes; an episode that has already ended counts as 0. A baseline that depends only on
the turn's number, and not on the action, does not change the gradient's mean (Williams 1992). Rewards before
a turn do not count for that turn (Sutton and Barto 2018, 13.3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from air.train.algorithms import Estimator

Rewards = Sequence[Sequence[float] | None]
"""The rewards of one group: for each episode the rewards of its parts, in order, or None for an episode that
is masked (not trained) because of an infrastructure error."""


def segments(rewards: Rewards, estimator: Estimator) -> list[list[float]]:
    """Returns the advantages of all segments in one group of episodes.

    A segment is the part of an episode that ends at a `validate`. The result has one list for each episode,
    with one number for each segment. The list is empty for an episode that is masked (None in `rewards`).

    Args:
        rewards: for each episode the rewards of its segments.
        estimator: computes the advantages of the episodes from the mean reward of each.

    Raises:
        ValueError: an episode has no segment, or a reward is not finite.
    """
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
    """Returns the advantages of all turns in one group of episodes.

    The advantage of a turn is computed from the rewards of that turn and all later turns. The result has one
    list for each episode, with one number for each turn. The list is empty for an episode that is masked
    (None in `rewards`).

    Args:
        rewards: for each episode the rewards of its turns.
        estimator: computes the advantages of the same turn in all episodes, from the sums of rewards that
            each episode earned from that turn on.

    Raises:
        ValueError: a reward is not finite.
    """
    longest = max((len(parts) for parts in rewards if parts is not None), default=0)
    found: list[list[float]] = [[] for _ in rewards]
    for turn in range(longest):
        left = [None if parts is None else math.fsum(parts[turn:]) for parts in rewards]
        for parts, advantages, advantage in zip(rewards, found, estimator(left), strict=True):
            if parts is not None and turn < len(parts):
                advantages.append(advantage)
    return found
