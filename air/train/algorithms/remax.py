"""The algorithm ReMax: the baseline of a group (the episodes of one prompt) is the reward of one more
episode, which is sampled at temperature 0 (greedily).

    A_t = r_t + r_{t+1} + … + r_n − b

t counts the n sampled tokens of an episode (or segment); b is the reward of the greedy episode. From Li et
al. 2024 (arXiv 2310.10505); per token as in verl and AgentFly (`compute_remax_outcome_advantage`).

With `credit = "segment"` (each segment of an episode has its own reward), b is the mean reward of the greedy
episode's segments, since a segment's advantage counts only its own reward. A group whose greedy episode ended
with an infrastructure error has no baseline and is not trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import ClassVar, Literal

from air.train.algorithms.base import (
    Algorithm,
    AlgorithmConfig,
    Credit,
    GroupCredits,
    ScoredGroup,
    ScoredPart,
)


class ReMaxConfig(AlgorithmConfig):
    """Settings of ReMax: the baseline of a group is the reward of one more episode of the prompt, which is
    sampled at temperature 0 and not trained on."""

    needs_spread: ClassVar[bool] = False

    type: Literal["remax"] = "remax"
    """The name of the algorithm. Each group has `group_size` episodes and one more, which is sampled at
    temperature 0."""

    def build(self) -> Algorithm:
        """Returns a new algorithm with these settings."""
        return ReMax()


class ReMax(Algorithm):
    """The algorithm `remax`: a token's advantage is the sum of the rewards from this token on, minus the
    reward of the group's greedy episode: one more episode of the same prompt, sampled at temperature 0."""

    needs = frozenset({"greedy"})

    def __call__(self, group: ScoredGroup) -> GroupCredits:
        """Returns the results for a group, which consists of the episodes of one prompt: an advantage for
        each sampled token. All advantages are 0 if `group.greedy` is None, because the greedy episode ended
        with an infrastructure error."""
        return [
            []
            if episode is None
            else [
                credit
                for stream in group.streams(episode)
                for credit in _of_stream(stream, group.greedy)
            ]
            for episode in group.episodes
        ]


def _of_stream(stream: Sequence[ScoredPart], baseline: float | None) -> list[Credit]:
    if baseline is None:
        return [Credit(0.0) for _ in stream]
    credits: list[Credit] = []
    later = 0.0
    for part in reversed(stream):
        to_go = list(accumulate(reversed(part.token_rewards()), initial=later))
        credits.append(Credit([reward - baseline for reward in to_go[:0:-1]]))
        later = to_go[-1] if part.tokens else later + part.reward
    return credits[::-1]
