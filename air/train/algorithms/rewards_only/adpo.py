"""The algorithm ADPO (ambiguity-dynamic policy optimisation): doubtful tasks count less, and clip later.

p is the share of episodes that agree on an answer: the more, the less ambiguous the task. With the mean μ and
the unbiased standard deviation σ of the group's rewards:

    s      = 0.6 + 0.4 · clip((p − 0.3)/0.5, 0, 1)
    A_i    = s · (r_i − μ) / (σ + 1e-6)
    ε_high = ε + 0.1 · clip((0.8 − p)/0.5, 0, 1)          the upper bound of the PPO clip

From Agent0 (arXiv 2511.16043; project aiming-lab/Agent0, whose trainer defines ADPO and does not call it).
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
    """ADPO: as `grpo_std`, but tasks on which the episodes disagree count less and are clipped later. It
    needs the loss `ppo_clip`, whose `clip_high` it replaces."""

    losses: ClassVar[frozenset[str] | None] = frozenset({"ppo_clip"})

    type: Literal["adpo"] = "adpo"
    """The name of the algorithm."""
    clip: float = Field(0.2, gt=0)
    """ε, the upper clip bound of tasks with p of at least 0.8; it grows by up to 0.1 as p falls to 0.3."""
    share: str | None = None
    """Name of the environment's metric that is p, between 0 and 1; the mean over the group's episodes counts.
    None: p is the share of the group's episodes that have a positive reward, before any KL penalty."""

    def build(self) -> Algorithm:
        """Returns the algorithm."""
        return ADPO(self)


class ADPO(Algorithm):
    """The algorithm with its settings."""

    def __init__(self, config: ADPOConfig) -> None:
        self.config = config
        self.normalized = GRPOStdConfig().build()

    def __call__(self, group: ScoredGroup) -> GroupCredits:
        """Returns the credits of a group. Raises ConfigError if the metric of p is absent or out of range."""
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
    """Returns s, the factor of the advantages."""
    return 0.6 + 0.4 * _clip((p - 0.3) / 0.5)


def upper_clip(p: float, epsilon: float) -> float:
    """Returns ε_high, the upper bound of the clip."""
    return epsilon + 0.1 * _clip((0.8 - p) / 0.5)


def _clip(value: float) -> float:
    return min(max(value, 0.0), 1.0)
