"""Adds a penalty for moving away from a reference model to any algorithm: `[embedded.kl]` of a run file.

k is an estimator of `air.train.algorithms.losses.kl`, and β the coefficient. x_t is the log-probability of
token t under the policy minus that under the reference. (The estimator `full` uses the divergence of the
whole prediction in place of k(x_t).)

    place = "reward"    r_t ← r_t − β k(x_t), before the algorithm sees the rewards
    place = "loss"      loss_t ← loss_t + β k(x_t), in the trainer

With a target, β changes after each step of n episodes (Ziegler et al. 2019, arXiv 1909.08593, 2.2):

    β ← β · (1 + clip(mean k / target − 1, −0.2, 0.2) · n / horizon)          the factor: from 0.5 to 2

The mean is over the sampled tokens of the step, with the probabilities at sampling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from air.train.algorithms.base import Algorithm, Credit, GroupCredits, Part, ScoredGroup
from air.train.config.loss_options import KLConfig

LARGEST_ERROR = 0.2
"""Bound of the relative distance of the mean penalty from the target; larger distances are cut to it."""
LARGEST_CHANGE = 2.0
"""The coefficient is at most multiplied or divided by this number in a step, so that it stays positive."""


class WithKL(Algorithm):
    """An algorithm with the KL penalty added. It needs the reference model, and all that `algorithm`
    needs."""

    def __init__(self, algorithm: Algorithm, config: KLConfig) -> None:
        self.algorithm, self.config = algorithm, config
        self.needs = algorithm.needs | {"reference"}
        if config.estimator == "full":
            self.needs |= {"divergence"}
        self.rewards_at_turns = algorithm.rewards_at_turns
        self.coefficient = config.coefficient
        self._groups: list[ScoredGroup] = []
        self._penalties: list[Sequence[float]] = []
        self._metrics: dict[str, float] = {}

    def __call__(self, group: ScoredGroup) -> GroupCredits:
        """Returns the credits of a group, with the penalty in its rewards or in arrays for the loss."""
        penalized = replace(
            group, episodes=[e and [self._penalized(part) for part in e] for e in group.episodes]
        )
        self._groups.append(penalized)
        credits = self.algorithm(penalized)
        if self.config.place == "reward":
            return credits
        return [
            [self._for_loss(c, part) for c, part in zip(of_episode, episode or (), strict=True)]
            for of_episode, episode in zip(credits, group.episodes, strict=True)
        ]

    def _penalized(self, part: Part) -> Part:
        penalties = self._of_tokens(part)
        self._penalties.append(penalties)
        if self.config.place == "loss":
            return part
        return replace(part, penalties=[self.coefficient * penalty for penalty in penalties])

    def _of_tokens(self, part: Part) -> Sequence[float]:
        """Returns the penalty of each token of a part, before it is multiplied by the coefficient."""
        import torch  # not at the top: run files are checked without torch

        from air.train.algorithms.losses.kl import KL

        if self.config.estimator == "full":
            if part.divergence is None:
                raise ValueError("the penalty needs the divergence from the reference")
            return part.divergence
        if part.reference is None:
            raise ValueError("the penalty needs the reference's log-probabilities")
        x = torch.tensor(part.logprobs).double() - torch.tensor(part.reference).double()
        penalties: list[float] = KL[self.config.estimator](x).tolist()
        return penalties

    def _for_loss(self, credit: Credit, part: Part) -> Credit:
        assert part.reference is not None
        arrays = {
            "reference": part.reference,
            "kl_coefficient": [self.coefficient] * part.tokens,
        }
        return replace(credit, arrays={**credit.arrays, **arrays})

    def finish(
        self, groups: Sequence[ScoredGroup], credits: Sequence[GroupCredits]
    ) -> Sequence[GroupCredits]:
        """Finishes the step of the wrapped algorithm, and moves the coefficient towards the target."""
        finished = self.algorithm.finish(self._groups, credits)
        each = [penalty for of_part in self._penalties for penalty in of_part]
        mean = sum(each) / max(1, len(each))
        self._metrics = {"reference_kl": mean, "kl_coefficient": self.coefficient}
        if self.config.target is not None and each:
            episodes = sum(e is not None for group in groups for e in group.episodes)
            error = mean / self.config.target - 1
            self.coefficient = adapted(self.coefficient, error, episodes / self.config.horizon)
        self._groups, self._penalties = [], []
        return finished

    def metrics(self) -> dict[str, float]:
        """Returns the wrapped algorithm's metrics and two more: `reference_kl`, the mean penalty of a token
        before multiplication, and `kl_coefficient`, the coefficient of the last step."""
        return {**self.algorithm.metrics(), **self._metrics}

    def state_dict(self) -> dict[str, Any]:
        """Returns the coefficient and the state of the wrapped algorithm."""
        return {"kl_coefficient": self.coefficient, "algorithm": self.algorithm.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state of the wrapped algorithm, and the coefficient if it has a target."""
        if self.config.target is not None:
            self.coefficient = float(state.get("kl_coefficient", self.coefficient))
        self.algorithm.load_state_dict(state.get("algorithm", {}))


def adapted(coefficient: float, error: float, share: float) -> float:
    """Returns the coefficient after a step. `error` is mean k / target − 1, `share` is n / horizon."""
    factor = 1 + min(max(error, -LARGEST_ERROR), LARGEST_ERROR) * share
    return coefficient * min(max(factor, 1 / LARGEST_CHANGE), LARGEST_CHANGE)
