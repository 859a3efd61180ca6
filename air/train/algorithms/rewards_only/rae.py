"""The algorithm RAE (role-conditioned advantage estimation): each agent's baseline is a moving average of its
rewards.

    A = r − b(agent)          then   b(agent) ← decay · b(agent) + (1 − decay) · r

As in prime-rl 0.8, `prime_rl/orchestrator/algo/rae.py`, after SPIRAL (arXiv 2506.24119). Baselines begin at
0; each pair of a source and an agent has a baseline of its own. RAE does not compare the episodes of a group,
so `group_size` may be 1. In games of an agent against itself, the mean of a group is no useful baseline,
because one side's gain is the other's loss.

The advantage of a part is computed before the part's reward r updates the baseline. With `reward_to_go`, r is
the sum of the rewards from a turn on, and each turn number has a baseline of its own.
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
    """The algorithm `rae` (role-conditioned advantage estimation): a part's advantage is its reward minus a
    moving average of the same agent's earlier rewards, the agent's baseline. Keeps the baselines of all
    agents."""

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.baselines: dict[str, float] = {}
        """The moving averages of rewards, by keys of the form `source/agent/turn`: the training source, the
        agent's name, and the turn's index, which is 0 unless the group's `reward_to_go` is set."""

    def __call__(self, group: ScoredGroup) -> GroupCredits:
        """Returns the credits of a group, one advantage for each part, and updates the baselines with the
        group's rewards."""
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
        """Restores the baselines from a result of `state_dict`. If `state` comes from another algorithm, all
        baselines start at 0."""
        self.baselines = dict(state.get("baselines", {}))


def _rewards(group: ScoredGroup, episode: Any) -> list[tuple[int, ScoredPart, float]]:
    """Returns a tuple for each part of `episode`: the index of the turn, the part, and the reward credited to
    the part. The index, which chooses the baseline of the part, is 0 unless the group's `reward_to_go` is
    set."""
    if not group.reward_to_go:
        return [(0, part, part.total) for part in episode]
    return [
        (turn, part, math.fsum(later.total for later in episode[turn:]))
        for turn, part in enumerate(episode)
    ]
