"""The algorithm GRPO: an episode's advantage is its reward minus the mean reward of its group.

    A_i = r_i − mean(r)

As in prime-rl 0.8, `prime_rl/orchestrator/algo/grpo.py`: GRPO of Shao et al. 2024 (arXiv 2402.03300) without
the division by the standard deviation, which Liu et al. 2025 (arXiv 2503.20783) found to favour very easy and
very hard groups.

The setting `length_penalty`, which prime-rl has too, lowers each reward first. Episode i has out_i sampled
tokens, in_i other tokens and turns_i replies; max is the largest number in the group; the w are settings:

    r_i ← r_i − mean(r) · (w_out · out_i/max(out) + w_in · in_i/max(in) + w_turns · turns_i/max(turns))

With `credit = "segment"`, i counts the segments of the group instead of the episodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field

from air.config import BaseConfig
from air.train.algorithms.base import (
    Algorithm,
    AlgorithmConfig,
    GroupCredits,
    ScoredGroup,
    ScoredPart,
)
from air.train.algorithms.episode_baselines import FromRewards, mean, over_scored


class LengthPenaltyConfig(BaseConfig):
    """Settings in the run file's table `[orchestrator.algo.length_penalty]`: a penalty that lowers the reward
    of long episodes.

    An episode has three lengths: its numbers of sampled tokens, of other tokens, and of replies. Each length
    is divided by the largest such length in the group, and multiplied by its weight. The sum of the three
    products, times the group's mean reward, is subtracted from the reward. So a group with mean reward 0 is
    not changed, and in a group with a negative mean, long episodes gain reward.
    """

    type: Literal["linear"] = "linear"
    """The form of the penalty; `linear` is the only one."""
    num_output_tokens_weight: float = Field(0.25, ge=0, allow_inf_nan=False)
    """The weight, in the length penalty, of an episode's number of sampled tokens."""
    num_input_tokens_weight: float = Field(0.1, ge=0, allow_inf_nan=False)
    """The weight, in the length penalty, of an episode's number of other tokens: prompts and observations."""
    num_turns_weight: float = Field(0.1, ge=0, allow_inf_nan=False)
    """The weight, in the length penalty, of an episode's number of model replies."""


class GRPOConfig(AlgorithmConfig):
    """Settings of GRPO without division by the standard deviation: an episode's advantage is its reward minus
    the group's mean reward."""

    type: Literal["grpo"] = "grpo"
    """The name of the algorithm."""
    length_penalty: LengthPenaltyConfig | None = None
    """Settings of the penalty that lowers the reward of long episodes. None: no penalty."""

    def build(self) -> Algorithm:
        """Returns a new algorithm with these settings."""
        return (
            FromRewards(grpo)
            if self.length_penalty is None
            else GRPOWithLengthPenalty(self.length_penalty)
        )


class GRPOWithLengthPenalty(FromRewards):
    """The algorithm `grpo` with the setting `length_penalty`: the rewards of long episodes are lowered before
    advantages are computed."""

    def __init__(self, config: LengthPenaltyConfig) -> None:
        super().__init__(grpo)
        self.config = config

    def __call__(self, group: ScoredGroup) -> GroupCredits:
        """Returns the results for a group, which consists of the episodes of one prompt: one advantage for
        each part. Each part must be a whole conversation (an episode or a segment), not a turn."""
        parts = [part for episode in group.episodes for part in episode or ()]
        if not parts:
            return super().__call__(group)
        center = mean([part.reward for part in parts])
        longest = [max(1, *of) for of in zip(*map(_lengths, parts), strict=True)]
        weights = (
            self.config.num_output_tokens_weight,
            self.config.num_input_tokens_weight,
            self.config.num_turns_weight,
        )

        def lowered(part: ScoredPart) -> ScoredPart:
            shares = [n / most for n, most in zip(_lengths(part), longest, strict=True)]
            share = sum(w * of for w, of in zip(weights, shares, strict=True))
            return replace(part, reward=part.reward - center * share)

        episodes = [e and [lowered(part) for part in e] for e in group.episodes]
        return super().__call__(replace(group, episodes=episodes))


def _lengths(part: ScoredPart) -> tuple[int, int, int]:
    return part.tokens, part.input_tokens, part.turns


def grpo(rewards: Sequence[float | None]) -> list[float]:
    """Returns one advantage for each episode of a group: its reward minus the mean reward of the group.
    Episodes without a reward (None) are left out of the mean and get 0. Raises ValueError if a reward is not
    finite."""

    def formula(scored: Sequence[float]) -> list[float]:
        center = mean(scored)
        return [r - center for r in scored]

    return over_scored(rewards, formula)
