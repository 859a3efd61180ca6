"""Supervised training on a teacher's episodes: the teacher, a model that is not trained, plays the episodes,
and the policy learns the tokens that the teacher sampled.

The loss is the cross-entropy of the policy on these tokens:

    loss = −Σ A_t log π(token t) / number of tokens, with A_t = 1

as in prime-rl's `sft` (`ce_loss_fn`). The teacher is the model that the setting `sampling.source` names, on a
vLLM server. The policy's renderer makes the prompts, and the server takes and returns token ids; so the
policy is trained on exactly the tokens that the teacher sampled, and the teacher must have the policy's
tokenizer. Rewards are recorded, but do not affect training.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import field_validator

from air.config import BaseConfig
from air.train.algorithms.base import Algorithm, AlgorithmConfig, Credit, GroupCredits, ScoredGroup
from air.train.config.further_models_config import TeacherConfig
from air.train.config.loss_options import CrossEntropyLossConfig, PolicyLossConfig


class SFTSamplingConfig(BaseConfig):
    """Settings in the run file's table `[orchestrator.algo.sampling]` of the algorithm `sft`: the model (the
    teacher) that plays the episodes for training."""

    source: TeacherConfig
    """The teacher: the model that plays the episodes, on a server. It must have the policy's tokenizer, and
    its server must also answer `/inference/v1/generate` and `/detokenize`, as vLLM does."""

    @field_validator("source")
    @classmethod
    def _on_a_server(cls, value: TeacherConfig) -> TeacherConfig:
        if value.base_url is None:
            raise ValueError("set base_url: the teacher plays on a server")
        return value


class SFTAlgoConfig(AlgorithmConfig):
    """Settings of supervised training on the episodes of a teacher; rewards do not count."""

    loss: ClassVar[PolicyLossConfig | None] = CrossEntropyLossConfig()
    uses_rewards: ClassVar[bool] = False
    needs_spread: ClassVar[bool] = False

    type: Literal["sft"] = "sft"
    """The name of the algorithm."""
    sampling: SFTSamplingConfig
    """Which model plays the episodes for training."""

    def build(self) -> Algorithm:
        """Returns a new algorithm with these settings."""
        return SFT()


class SFT(Algorithm):
    """The algorithm `sft` (supervised training on a teacher's episodes): every token that the teacher sampled
    has the weight 1 in the cross-entropy."""

    def __call__(self, group: ScoredGroup) -> GroupCredits:
        """Returns the results for a group, which consists of the episodes of one prompt: the advantage 1 for
        all tokens of each part."""
        return [
            [] if episode is None else [Credit(1.0) for _ in episode] for episode in group.episodes
        ]
