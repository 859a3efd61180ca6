"""On-policy distillation (OPD): the policy samples tokens, and a teacher's log-probabilities rate them.

    A_t = log p_teacher(token t) − log π(token t)

so the policy gradient minimises the reverse KL divergence from the policy to the teacher. From Agarwal et al.
2024 (arXiv 2306.13649) and Lu 2025 ("On-Policy Distillation", Thinking Machines); as in prime-rl's `opd`
(`ref_kl_loss_fn`). prime-rl takes π from the trainer; air takes it from the sampler. The two are equal in a
step whose tokens were sampled with the weights that are being trained. The teacher's probabilities are those
at temperature 1. Rewards are recorded, but do not affect the training.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from air.train.algorithms.base import Algorithm, AlgorithmConfig, Credit, GroupCredits, ScoredGroup
from air.train.config.needs_config import TeacherConfig


class OPDConfig(AlgorithmConfig):
    """On-policy distillation: each token is trained towards a teacher's probability. Rewards do not count."""

    needs_spread: ClassVar[bool] = False

    type: Literal["opd"] = "opd"
    """The name of the algorithm."""
    teacher: TeacherConfig
    """The model to learn from: on a server, or in a folder."""

    def build(self) -> Algorithm:
        """Returns the algorithm."""
        return OPD()


class OPD(Algorithm):
    """The algorithm: a token's advantage is its log-probability by the teacher minus that by the policy."""

    needs = frozenset({"teacher"})

    def __call__(self, group: ScoredGroup) -> GroupCredits:
        """Returns the credits of one group."""
        return [
            []
            if episode is None
            else [
                Credit([t - p for t, p in zip(part.teacher or (), part.logprobs, strict=True)])
                for part in episode
            ]
            for episode in group.episodes
        ]
