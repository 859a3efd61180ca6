"""The algorithm REINFORCE++ with baseline: rewards centred by group, then whitened over the step's tokens.

    B_i = r_i − mean(r)          A_t = (B_i − mean(B)) / sqrt(var(B) + 1e-8)

mean(r) is the mean reward of the group, as in `grpo`. In a group of size 1, mean(r) counts as 0. (If only one
episode of a larger group has a reward, because all others ended with an infrastructure error, its B is 0.)
mean(B) and the (unbiased) var(B) are over all sampled tokens of the step. Unlike in `grpo_std`, groups whose
rewards hardly differ do not gain weight, because the rewards of all groups are divided by the same number.

From Hu 2025 (arXiv 2501.03262), as in verl (`compute_reinforce_plus_plus_baseline_outcome_advantage`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from air.train.algorithms.base import Algorithm, AlgorithmConfig, GroupCredits, ScoredGroup
from air.train.algorithms.episode_baselines import FromRewards, centered
from air.train.algorithms.whiten import whitened


class ReinforcePlusPlusBaselineConfig(AlgorithmConfig):
    """Settings of REINFORCE++ with baseline: an advantage is a reward minus the mean of its group, whitened
    (shifted and scaled to mean 0 and variance 1) over all sampled tokens of the step."""

    type: Literal["reinforce_plus_plus_baseline"] = "reinforce_plus_plus_baseline"
    """The name of the algorithm."""

    def build(self) -> Algorithm:
        """Returns a new algorithm with these settings."""
        return ReinforcePlusPlusBaseline(centered)


class ReinforcePlusPlusBaseline(FromRewards):
    """The algorithm `reinforce_plus_plus_baseline`: an advantage is a reward minus the mean reward of its
    group, whitened (shifted and scaled to mean 0 and variance 1) over all sampled tokens of the step."""

    def finish(
        self, groups: Sequence[ScoredGroup], credits: Sequence[GroupCredits]
    ) -> Sequence[GroupCredits]:
        """Whitens the advantages: shifts and scales them to mean 0 and variance 1 over all sampled tokens of
        the step. Returns `credits`, the results of `__call__` for all `groups` of the step, with these
        advantages."""
        return whitened(groups, credits)
