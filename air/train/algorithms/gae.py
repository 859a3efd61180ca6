"""Generalised advantage estimation (GAE): the advantages that PPO uses.

From Schulman et al. 2016 (arXiv 1506.02438). For the sampled tokens t = 1 … n of an episode, with the reward
r_t that arrives after token t, and the value V_t of the context before token t:

    δ_t = r_t + γ V_{t+1} − V_t          A_t = δ_t + γλ A_{t+1}          V_{n+1} = A_{n+1} = 0

The index t counts sampled tokens only. The tokens of observations between two replies are skipped: t + 1 is
the next sampled token, as in AgentFly and verl (`compute_gae_advantage_return`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from air.train.algorithms.base import (
    Algorithm,
    AlgorithmConfig,
    Credit,
    GroupCredits,
    ScoredGroup,
    ScoredPart,
    stream_rewards,
)
from air.train.algorithms.whiten import whitened


class GAEConfig(AlgorithmConfig):
    """Settings of PPO: generalised advantage estimation with a value model. The value model's own settings
    are in `[embedded.value_model]`."""

    needs_spread: ClassVar[bool] = False

    type: Literal["gae"] = "gae"
    """The name of the algorithm. With `credit = "episode"`, the reward of each turn counts at the last
    sampled token of this turn, and not at the end of the episode."""
    gamma: float = Field(1.0, ge=0, le=1)
    """The discount γ, applied once for each sampled token between a token and a later reward. With 1, later
    rewards count in full."""
    lam: float = Field(1.0, ge=0, le=1)
    """The parameter λ. With 1, an advantage is the sum of later rewards minus the value. Smaller numbers rely
    more on the values of later tokens, which have less noise and more bias than the rewards."""

    def build(self) -> Algorithm:
        """Returns a new algorithm with these settings."""
        return GAE(self.gamma, self.lam)


def gae(
    rewards: Sequence[float], values: Sequence[float], gamma: float, lam: float
) -> tuple[list[float], list[float]]:
    """Computes generalised advantage estimation. Returns two lists with one element per sampled token, in
    order: the advantages, and the returns, which are the advantages plus `values` and are the targets of the
    value model. `gamma` is the discount γ, and `lam` the parameter λ. Raises ValueError if `rewards` and
    `values` differ in length."""
    if len(rewards) != len(values):
        raise ValueError(f"{len(rewards)} rewards for {len(values)} values")
    advantages = [0.0] * len(values)
    next_value = next_advantage = 0.0
    for t in range(len(values) - 1, -1, -1):
        delta = rewards[t] + gamma * next_value - values[t]
        next_advantage = advantages[t] = delta + gamma * lam * next_advantage
        next_value = values[t]
    returns = [a + v for a, v in zip(advantages, values, strict=True)]
    return advantages, returns


class GAE(Algorithm):
    """The algorithm `gae`: advantages by generalised advantage estimation, whitened (shifted and scaled to
    mean 0 and variance 1) over all sampled tokens of the step. The advantages are computed separately for
    each stream of an episode: a sequence of parts within which a token is credited with later rewards (see
    `ScoredGroup.streams`)."""

    needs = frozenset({"values"})
    rewards_at_turns = True

    def __init__(self, gamma: float, lam: float) -> None:
        self.gamma, self.lam = gamma, lam

    def __call__(self, group: ScoredGroup) -> GroupCredits:
        """Returns the results for a group, which consists of the episodes of one prompt: the advantage of
        each sampled token, which `finish` will shift and scale, and the return that the value model is
        trained to predict at this token."""
        return [
            [] if episode is None else self._of_episode(group.streams(episode))
            for episode in group.episodes
        ]

    def finish(
        self, groups: Sequence[ScoredGroup], credits: Sequence[GroupCredits]
    ) -> Sequence[GroupCredits]:
        """Whitens the advantages: shifts and scales them to mean 0 and variance 1 over all sampled tokens of
        the step. Returns `credits`, the results of `__call__` for all `groups` of the step, with the whitened
        advantages and the unchanged returns."""
        return whitened(groups, credits)

    def _of_episode(self, streams: Sequence[Sequence[ScoredPart]]) -> list[Credit]:
        credits = []
        for stream in streams:
            values = [value for part in stream for value in part.values or ()]
            advantages, returns = gae(stream_rewards(stream), values, self.gamma, self.lam)
            start = 0
            for part in stream:
                here = slice(start, start + part.tokens)
                credits.append(Credit(advantages[here], returns[here]))
                start += part.tokens
        return credits
