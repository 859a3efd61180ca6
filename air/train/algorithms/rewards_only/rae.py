"""The algorithm RAE (role-conditioned advantage estimation): each agent's baseline is a moving average of its
rewards.

    A = r − b(agent)          then   b(agent) ← decay · b(agent) + (1 − decay) · r

As in prime-rl 0.8, `prime_rl/orchestrator/algo/rae.py`, after SPIRAL (arXiv 2506.24119). Baselines begin at
0; each pair of a training source and an agent has a baseline of its own. RAE does not compare the episodes of
a group, so `group_size` may be 1. In games of an agent against itself, the mean of a group is no useful
baseline, because one side's gain is the other's loss.

The advantage of a part (episode, segment or turn) is computed before the part's reward r updates the
baseline. With `reward_to_go`, r is the sum of the rewards from a turn on, and each turn number has a baseline
of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from air.train.algorithms.base import (
    Algorithm,
    AlgorithmConfig,
    Credit,
    GroupCredits,
    ScoredGroup,
    ScoredPart,
)


class RAEConfig(AlgorithmConfig):
    """Settings of RAE (role-conditioned advantage estimation): an episode's advantage is its reward minus the
    moving average of the agent's earlier rewards. The algorithm is meant for games; it also works with groups
    of one episode."""

    needs_spread: ClassVar[bool] = False

    type: Literal["rae"] = "rae"
    """The name of the algorithm."""
    decay: float = Field(0.95, ge=0, lt=1)
    """The weight of the old baseline in an update: baseline ← decay · baseline + (1 − decay) · reward."""

    def build(self) -> Algorithm:
        """Returns a new algorithm with these settings, whose baselines are all 0."""
        return RAE(self.decay)


class RAE(Algorithm):
    """The algorithm `rae` (role-conditioned advantage estimation): the advantage of a part (an episode,
    segment or turn) is its reward minus the agent's baseline, a moving average of the same agent's earlier
    rewards. The object keeps the baselines of all agents."""

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.baselines: dict[str, float] = {}
        """The moving averages of rewards, by keys of the form `source/agent/turn`: the training source, the
        agent's name, and the turn's index, which is 0 unless the group's `reward_to_go` is set."""

    def __call__(self, group: ScoredGroup) -> GroupCredits:
        """Returns the results for a group, which consists of the episodes of one prompt: one advantage for
        each part (episode, segment or turn). Also updates the agents' baselines with the group's rewards.
        Raises ValueError if a reward is not finite."""
        return [
            [
                Credit(self._advantage(f"{group.source}/{part.agent}/{turn}", reward))
                for turn, part, reward in _rewards(group, episode)
            ]
            for episode in ([] if e is None else e for e in group.episodes)
        ]

    def _advantage(self, key: str, reward: float) -> float:
        if not math.isfinite(reward):
            raise ValueError(f"rewards must be finite, got {reward}")
        baseline = self.baselines.get(key, 0.0)
        self.baselines[key] = self.decay * baseline + (1 - self.decay) * reward
        return reward - baseline

    def state_dict(self) -> dict[str, Any]:
        """Returns the baselines of all agents, for a checkpoint."""
        return {"baselines": dict(self.baselines)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the baselines from `state`, a result of `state_dict`. If `state` comes from another
        algorithm, all baselines start at 0."""
        self.baselines = dict(state.get("baselines", {}))


def _rewards(group: ScoredGroup, episode: Any) -> list[tuple[int, ScoredPart, float]]:
    """Returns a tuple (turn, part, reward) for each part of `episode`, a list of `ScoredPart` objects.
    `reward` is the reward that the part is credited with: with `group.reward_to_go`, the sum from this turn
    on. `turn` is the index of the turn, which selects the baseline; without `group.reward_to_go`, it is 0."""
    if not group.reward_to_go:
        return [(0, part, part.total) for part in episode]
    return [
        (turn, part, math.fsum(later.total for later in episode[turn:]))
        for turn, part in enumerate(episode)
    ]
