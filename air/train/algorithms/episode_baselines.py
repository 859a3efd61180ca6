"""Advantages of the parts of episodes, whose baselines are taken over episodes.

With G episodes of one prompt, episode i having n_i parts that earned r_i1 … r_in, and the group's
estimator `advantage` (for `grpo`: x_i − mean(x)):

    segments        m_i = mean of r_i1 … r_in           A_ik = advantage(m)_i + r_ik − m_i
    reward_to_go    R_it = r_it + r_i,t+1 + …           A_it = advantage(R_·t)_i

So with `grpo` a segment's baseline is (1/G) Σ_i m_i: each episode weighs the same however many segments it
has. (A mean over all segments of the group, which prime-rl takes, weighs an episode by n_i.) A turn is
compared with what all the group's episodes still earned from that turn on, which is 0 for one that has
ended; for the first turn that is the episode's reward. A baseline that depends on the turn's number
alone, and not on what was done in it, leaves the gradient's mean as it is (Williams 1992); rewards before
a turn do not belong to it (Sutton and Barto 2018, 13.3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from air.train.algorithms import Estimator

Rewards = Sequence[Sequence[float] | None]
"""One group: the rewards of each episode's parts, in turn; None masks an episode."""


def segments(rewards: Rewards, estimator: Estimator) -> list[list[float]]:
    """Returns the advantages of segments, in the shape of `rewards`; empty for a masked episode.

    Raises:
        ValueError: an episode has no part, or a reward is not finite.
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
    """Returns the advantages of turns, from the rewards of each turn and later ones, in the shape of
    `rewards`; empty for a masked episode.

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
