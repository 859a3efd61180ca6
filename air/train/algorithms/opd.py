"""On-policy distillation (OPD): the advantages of the policy's tokens come from a teacher model.

    A_t = log p_teacher(token t) − log π(token t)

so the policy gradient minimises the reverse KL divergence from the policy to the teacher. From Agarwal et al.
2024 (arXiv 2306.13649) and Lu 2025 ("On-Policy Distillation", Thinking Machines); as in prime-rl's `opd`
(`ref_kl_loss_fn`). prime-rl takes π from the trainer; air takes it from the sampler. The two are equal in a
step whose tokens were sampled with the weights that are being trained. The teacher's probabilities are those
at temperature 1. Rewards are recorded, but do not affect training.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from air.train.algorithms.base import Algorithm, AlgorithmConfig, Credit, GroupCredits, ScoredGroup
from air.train.config.further_models_config import TeacherConfig


class OPDConfig(AlgorithmConfig):
    """Settings of on-policy distillation: each token's advantage comes from a teacher model; rewards do not
    count."""

    uses_rewards: ClassVar[bool] = False
    needs_spread: ClassVar[bool] = False

    type: Literal["opd"] = "opd"
    """The name of the algorithm."""
    teacher: TeacherConfig
    """The teacher: the model whose log-probabilities the policy learns, on a server or in a folder."""

    def build(self) -> Algorithm:
        """Returns a new algorithm with these settings."""
        return OPD()


class OPD(Algorithm):
    """The algorithm `opd` (on-policy distillation): a token's advantage is its log-probability under the
    teacher model minus its log-probability under the policy."""

    needs = frozenset({"teacher"})

    def __call__(self, group: ScoredGroup) -> GroupCredits:
        """Returns the results for a group, which consists of the episodes of one prompt: an advantage for
        each sampled token."""
        return [
            []
            if episode is None
            else [
                Credit([t - p for t, p in zip(part.teacher or (), part.logprobs, strict=True)])
                for part in episode
            ]
            for episode in group.episodes
        ]
