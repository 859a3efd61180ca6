"""Computes the advantages of the segments or turns of a group (the episodes of one prompt), from baselines in
which each episode has equal weight.

A group has G episodes of one prompt. Episode i has n_i parts (segments or turns) with the rewards r_i1 …
r_in. `advantage` is the estimator of the group: a function from one number x_i per episode to one advantage
per episode (for `grpo`: x_i − mean(x)). Part k of a segmented episode, or turn t of a conversation, gets

    segments        m_i = mean of r_i1 … r_in           A_ik = advantage(m)_i + slope(m) · (r_ik − m_i)
    reward_to_go    R_it = r_it + r_i,t+1 + …           A_it = advantage(R_·t)_i

The factor `slope` is 1, or 1/mean(m) for `max_rl`. `grpo_std` has a formula of its own for segments.

With `grpo`, the baseline of a segment is (1/G) Σ_i m_i. (prime-rl takes the mean over all segments of the
group, which weighs an episode by n_i.) With `grpo`, the baseline of turn t is the mean of R_it over the
group; R_it is 0 for an episode that ended before turn t. A baseline that does not depend on the action leaves
the expected gradient unchanged (Williams 1992). Rewards before a turn do not count for the turn (Sutton and
Barto 2018, 13.3).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from air.train.algorithms.base import Algorithm, Credit, GroupCredits, ScoredGroup

Estimator = Callable[[Sequence[float | None]], list[float]]
"""A function that turns the rewards of one group into advantages: one for each episode, in the same order.

An episode that is not trained (see `ScoredGroup.episodes`) has the reward None; its advantage is not used.
"""

Rewards = Sequence[Sequence[float] | None]
"""The rewards of one group: for each episode the rewards of its parts, in order, or None for an episode that
is not trained (see `ScoredGroup.episodes`)."""


class FromRewards(Algorithm):
    """An algorithm that is defined by an estimator: a function from one reward per episode of a group to one
    advantage per episode. All tokens of a part (episode, segment or turn) get the same advantage, computed
    from the rewards of the group alone.

    The field `slope` is used for segments only: a segment's advantage is the episode's advantage plus slope ·
    (the segment's reward − the mean reward of the episode's segments). `slope` is a function that computes
    the factor in this formula. Its argument is a list with the mean reward of each episode that is trained.
    None: the factor is 1.
    """

    def __init__(
        self, estimator: Estimator, slope: Callable[[Sequence[float]], float] | None = None
    ) -> None:
        self.estimator, self.slope = estimator, slope

    def segments(self, rewards: Rewards) -> list[list[float]]:
        """Returns the advantages of all segments in a group (the episodes of one prompt): a list for each
        episode, empty for an episode that is None in `rewards`. Subclasses with another formula for segments
        override this method."""
        return segments(rewards, self.estimator, self.slope)

    def __call__(self, group: ScoredGroup) -> GroupCredits:
        """Returns the results for a group, which consists of the episodes of one prompt: one advantage for
        each segment (an unsegmented episode counts as one) or, with `group.reward_to_go`, for each turn."""
        rewards = [
            None if episode is None else [part.total for part in episode]
            for episode in group.episodes
        ]
        to_go = group.reward_to_go
        advantages = reward_to_go(rewards, self.estimator) if to_go else self.segments(rewards)
        return [[Credit(a) for a in of_episode] for of_episode in advantages]


def segments(
    rewards: Rewards,
    estimator: Estimator,
    slope: Callable[[Sequence[float]], float] | None = None,
) -> list[list[float]]:
    """Returns the advantages of all segments in a group (the episodes of one prompt). The result has a list
    for each episode, which is empty for an episode that is None in `rewards`.

    A segment's advantage is the episode's advantage plus a factor times (the segment's reward − the mean
    reward of the episode's segments). `estimator` computes the episodes' advantages from their mean rewards.
    `slope` computes the factor from a list of these mean rewards, without the episodes that are None; if
    `slope` is None, the factor is 1. Raises ValueError if a reward is not finite, or if an episode has no
    segment.
    """
    if any(parts is not None and not parts for parts in rewards):
        raise ValueError("an episode has at least one part")
    means = [None if parts is None else mean(parts) for parts in rewards]
    scored = [m for m in means if m is not None]
    factor = slope(scored) if slope is not None and scored else 1.0
    advantages: list[list[float]] = []
    for parts, average, advantage in zip(rewards, means, estimator(means), strict=True):
        if parts is None or average is None:
            advantages.append([])
        else:
            advantages.append([advantage + factor * (reward - average) for reward in parts])
    return advantages


def reward_to_go(rewards: Rewards, estimator: Estimator) -> list[list[float]]:
    """Returns the advantages of all turns in a group (the episodes of one prompt): a list for each episode,
    empty for an episode that is None in `rewards`. Calls `estimator` once for each turn index, to compute the
    advantages of the turns with this index. Its argument has, for each episode, the sum of the rewards of
    this turn and all later turns (0 if the episode has ended before, None if it is None). Raises ValueError
    if a reward is not finite."""
    longest = max((len(parts) for parts in rewards if parts is not None), default=0)
    result: list[list[float]] = [[] for _ in rewards]
    for turn in range(longest):
        sums = [None if parts is None else math.fsum(parts[turn:]) for parts in rewards]
        for parts, advantages, advantage in zip(rewards, result, estimator(sums), strict=True):
            if parts is not None and turn < len(parts):
                advantages.append(advantage)
    return result


def over_scored(
    rewards: Sequence[float | None], formula: Callable[[Sequence[float]], Sequence[float]]
) -> list[float]:
    """Applies `formula` to those rewards that are not None. `formula` maps a list of rewards to a list of
    advantages, in the same order. Returns one number for each episode, in the order of `rewards`: the
    advantage, or 0 if the reward is None. Raises ValueError if a reward is not finite."""
    scored = [r for r in rewards if r is not None]
    if not all(math.isfinite(r) for r in scored):
        raise ValueError(f"rewards must be finite, got {list(rewards)}")
    advantages = iter(formula(scored) if scored else ())
    return [0.0 if r is None else next(advantages) for r in rewards]


def centered(rewards: Sequence[float | None]) -> list[float]:
    """Returns a list with each reward minus the mean reward of the group (the episodes of one prompt), and 0
    for an episode without a reward (None). In a group of one episode, 0 is subtracted instead of the mean.
    Raises ValueError if a reward is not finite."""

    def formula(scored: Sequence[float]) -> list[float]:
        center = mean(scored) if len(rewards) > 1 else 0.0
        return [r - center for r in scored]

    return over_scored(rewards, formula)


def mean(values: Sequence[float]) -> float:
    """Returns the mean of `values`, summed with `math.fsum`, whose result has no accumulated rounding
    error."""
    return math.fsum(values) / len(values)
