"""The algorithm REINFORCE++: discounted returns, whitened over all sampled tokens of the step.

    G_t = r_t + γ G_{t+1}          A_t = (G_t − mean(G)) / sqrt(var(G) + 1e-8)

t counts the sampled tokens of an episode (with `credit = "segment"`, of a segment). A part's reward counts at
the part's last token; with `reward_to_go`, every turn's reward counts at the last token of the turn. There is
no baseline per group: the mean and the (unbiased) variance are over all sampled tokens of the step.

From Hu 2025 (arXiv 2501.03262), as in AgentFly and verl (`compute_reinforce_plus_plus_outcome_advantage`).
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


class ReinforcePlusPlusConfig(AlgorithmConfig):
    """Settings of REINFORCE++: a token's advantage is its discounted return, whitened (shifted and scaled to
    mean 0 and variance 1) over all sampled tokens of the step."""

    needs_spread: ClassVar[bool] = False

    type: Literal["reinforce_plus_plus"] = "reinforce_plus_plus"
    """The name of the algorithm."""
    gamma: float = Field(1.0, ge=0, le=1)
    """The discount γ, applied once for each sampled token between a token and a later reward."""

    def build(self) -> Algorithm:
        """Returns a new algorithm with these settings."""
        return ReinforcePlusPlus(self.gamma)


class ReinforcePlusPlus(Algorithm):
    """The algorithm `reinforce_plus_plus`: a token's advantage is its discounted return, whitened (shifted
    and scaled to mean 0 and variance 1) over all sampled tokens of the step."""

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma

    def __call__(self, group: ScoredGroup) -> GroupCredits:
        """Returns the results for a group, which consists of the episodes of one prompt: the advantage of
        each token is its discounted return, which `finish` will shift and scale."""
        return [
            [
                Credit(own)
                for stream in group.streams(episode or [])
                for own in self._of_stream(stream)
            ]
            for episode in group.episodes
        ]

    def _of_stream(self, stream: Sequence[ScoredPart]) -> list[list[float]]:
        rewards = iter(returns(stream_rewards(stream), self.gamma))
        return [[next(rewards) for _ in range(part.tokens)] for part in stream]

    def finish(
        self, groups: Sequence[ScoredGroup], credits: Sequence[GroupCredits]
    ) -> Sequence[GroupCredits]:
        """Whitens the advantages: shifts and scales them to mean 0 and variance 1 over all sampled tokens of
        the step. Returns `credits`, the results of `__call__` for all `groups` of the step, with these
        advantages."""
        return whitened(groups, credits)


def returns(rewards: Sequence[float], gamma: float) -> list[float]:
    """Returns a list with the discounted return G_t = r_t + γ G_{t+1} of each token. `rewards` has the reward
    r_t of each token, and `gamma` is the discount γ."""
    result = [0.0] * len(rewards)
    later = 0.0
    for t in reversed(range(len(rewards))):
        later = result[t] = rewards[t] + gamma * later
    return result
