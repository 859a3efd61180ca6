"""The algorithm ADPO (ambiguity-dynamic policy optimisation): ambiguous tasks get smaller advantages and a
higher upper bound of the PPO clip.

p is the share of the group's episodes that agree on an answer; a task with a large p is not ambiguous. μ is
the mean of the group's rewards, σ their unbiased standard deviation, and ε the setting `clip`:

    s      = 0.6 + 0.4 · clip((p − 0.3)/0.5, 0, 1)
    A_i    = s · (r_i − μ) / (σ + 1e-6)
    ε_high = ε + 0.1 · clip((0.8 − p)/0.5, 0, 1)          probability ratios are clipped to 1 + ε_high

From Agent0 (arXiv 2511.16043; project aiming-lab/Agent0, whose trainer defines ADPO but never calls it).
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from air.errors import ConfigError
from air.train.algorithms.base import (
    Algorithm,
    AlgorithmConfig,
    GroupCredits,
    ScoredGroup,
)
from air.train.algorithms.rewards_only.grpo_std import GRPOStdConfig


class ADPOConfig(AlgorithmConfig):
    """Settings of ADPO (ambiguity-dynamic policy optimisation). ADPO computes the advantages of the algorithm
    `grpo_std`, but tasks on which the group's episodes disagree get smaller advantages and a higher upper
    bound of the PPO clip. ADPO needs the loss `ppo_clip`, whose setting `clip_high` is replaced by this
    bound."""

    losses: ClassVar[frozenset[str] | None] = frozenset({"ppo_clip"})
    sets_clip_high: ClassVar[bool] = True

    type: Literal["adpo"] = "adpo"
    """The name of the algorithm."""
    clip: float = Field(0.2, gt=0)
    """The number ε of tasks whose agreement p (see `share`) is at least 0.8: the loss limits the probability
    ratio of a token to at most 1 + ε. As p falls to 0.3, this bound grows to 1 + ε + 0.1."""
    share: str | None = None
    """The name of the environment's metric that measures p, the share of the group's episodes that agree on
    an answer. The metric must be between 0 and 1; p is the mean of the metric over the group's episodes.
    None: p is the share of episodes with a positive reward, before any KL penalty."""

    def build(self) -> Algorithm:
        """Returns a new algorithm with these settings."""
        return ADPO(self)


class ADPO(Algorithm):
    """The algorithm `adpo`: as `grpo_std`, but for ambiguous tasks (on which only a small share of the
    group's episodes agree) the advantages are smaller and the upper bound of the PPO clip is higher."""

    def __init__(self, config: ADPOConfig) -> None:
        self.config = config
        self.normalized = GRPOStdConfig().build()

    def __call__(self, group: ScoredGroup) -> GroupCredits:
        """Returns the results for a group, which consists of the episodes of one prompt: for each part
        (episode, segment or turn), an advantage and `clip_high` (the loss limits probability ratios to at
        most 1 + `clip_high`). Raises ConfigError if the metric that the setting `share` names is absent or
        not between 0 and 1."""
        if all(episode is None for episode in group.episodes):
            return [[] for _ in group.episodes]
        p = self._share(group)
        s, clip_high = scale(p), upper_clip(p, self.config.clip)
        return [
            [replace(c, advantage=s * c.per_token(1)[0], clip_high=clip_high) for c in episode]
            for episode in self.normalized(group)
        ]

    def _share(self, group: ScoredGroup) -> float:
        if self.config.share is not None:
            p = group.metrics.get(self.config.share)
            if p is None or not 0 <= p <= 1:
                raise ConfigError(
                    f"the metric {self.config.share!r} of source {group.source!r} is {p}",
                    where="orchestrator.algo.share",
                    remedy="name a metric that every episode has, between 0 and 1",
                )
            return p
        rewards = [sum(part.reward for part in e) for e in group.episodes if e is not None]
        return sum(reward > 0 for reward in rewards) / len(rewards)


def scale(p: float) -> float:
    """Returns the factor by which the advantages of a group are multiplied. `p` is the share of the group's
    episodes that agree on an answer. The factor is 0.6 for p ≤ 0.3 and 1 for p ≥ 0.8, and linear in
    between."""
    return 0.6 + 0.4 * _clip((p - 0.3) / 0.5)


def upper_clip(p: float, epsilon: float) -> float:
    """Returns ε_high for a group: the PPO clip limits a token's probability ratio to at most 1 + ε_high. `p`
    is the share of the group's episodes that agree on an answer. ε_high is `epsilon` for p ≥ 0.8 and
    `epsilon` + 0.1 for p ≤ 0.3, and linear in between."""
    return epsilon + 0.1 * _clip((0.8 - p) / 0.5)


def _clip(value: float) -> float:
    return min(max(value, 0.0), 1.0)
