"""Algorithms, which compute the advantage of each sampled token from the rewards of a group (the episodes of
one prompt).

The module `base` defines the interface. The package `rewards_only` contains the algorithms that need nothing
but rewards, one file each. The algorithms in `gae`, `opd`, `remax` and `sft` need more, such as a value
model. The module `imported` loads an advantage function that a user wrote and named in `[embedded.estimator]`
of a run file (TOML).

To add an algorithm, write a file with a subclass of `Algorithm` and a class of settings (a subclass of
`AlgorithmConfig`), and add the class of settings to `AlgoConfig`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from air.train.algorithms.base import (
    Algorithm,
    AlgorithmConfig,
    Credit,
    ScoredGroup,
    ScoredPart,
    ScoredReply,
)
from air.train.algorithms.episode_baselines import Estimator, FromRewards
from air.train.algorithms.gae import GAEConfig
from air.train.algorithms.opd import OPDConfig
from air.train.algorithms.remax import ReMaxConfig
from air.train.algorithms.rewards_only.adpo import ADPOConfig
from air.train.algorithms.rewards_only.grpo import GRPOConfig, grpo
from air.train.algorithms.rewards_only.grpo_std import GRPOStdConfig
from air.train.algorithms.rewards_only.max_rl import MaxRLConfig
from air.train.algorithms.rewards_only.rae import RAEConfig
from air.train.algorithms.rewards_only.reinforce_plus_plus import ReinforcePlusPlusConfig
from air.train.algorithms.rewards_only.reinforce_plus_plus_baseline import (
    ReinforcePlusPlusBaselineConfig,
)
from air.train.algorithms.rewards_only.rloo import RLOOConfig
from air.train.algorithms.sft import SFTAlgoConfig


def _grpo_by_default(value: object) -> object:
    return {"type": "grpo", **value} if isinstance(value, dict) else value


AlgoConfig = Annotated[
    GRPOConfig
    | GRPOStdConfig
    | MaxRLConfig
    | RAEConfig
    | RLOOConfig
    | ReinforcePlusPlusConfig
    | ReinforcePlusPlusBaselineConfig
    | ADPOConfig
    | GAEConfig
    | ReMaxConfig
    | OPDConfig
    | SFTAlgoConfig,
    Field(discriminator="type"),
    BeforeValidator(_grpo_by_default),
]
"""The settings of an algorithm: the content of the run file's table `[orchestrator.algo]`. The field `type`
names the algorithm."""

__all__ = [
    "AlgoConfig",
    "Algorithm",
    "AlgorithmConfig",
    "Credit",
    "Estimator",
    "FromRewards",
    "GRPOConfig",
    "ScoredGroup",
    "ScoredPart",
    "ScoredReply",
    "grpo",
]
