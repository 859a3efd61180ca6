"""Adds to any algorithm a penalty for the KL divergence of the policy from a reference model, as the table
`[embedded.kl]` of a run file sets it.

k is one of the estimators in `air.train.algorithms.losses.kl`, and β the coefficient. x_t is the
log-probability of token t under the policy minus its log-probability under the reference. (The estimator
`full` replaces k(x_t) by the KL divergence over the whole vocabulary.)

    place = "reward"    r_t ← r_t − β k(x_t), before the algorithm sees the rewards
    place = "loss"      loss_t ← loss_t + β k(x_t), in the trainer

With the setting `target`, β changes after each step of n episodes (Ziegler et al. 2019, arXiv 1909.08593,
2.2):

    β ← β · (1 + clip(mean k / target − 1, −0.2, 0.2) · n / horizon)          the factor: from 0.5 to 2

The mean of k is taken over the sampled tokens of the step. The policy's log-probabilities in this mean are
those at sampling time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from air.train.algorithms.base import Algorithm, Credit, GroupCredits, ScoredGroup, ScoredPart
from air.train.config.loss_options import KLConfig

LARGEST_ERROR = 0.2
"""The bound of the relative error of the mean KL penalty, which is mean penalty / target − 1. After each
step, the error is clipped to ± this number before the penalty's coefficient is adapted."""
LARGEST_CHANGE = 2.0
"""The largest factor by which the coefficient β of the KL penalty is multiplied or divided after one step.
This bound keeps β positive."""


class WithKL(Algorithm):
    """An algorithm that wraps another one, `algorithm`, and adds a penalty for the KL divergence of the
    policy from a reference model. Besides the inputs that `algorithm` needs, it needs the reference model's
    log-probabilities and, if the setting `estimator` is `full`, the divergence over the whole vocabulary."""

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
        """Returns the wrapped algorithm's results for a group (the episodes of one prompt). If the setting
        `place` is "reward", first subtracts the penalty from the rewards that the algorithm gets. If it is
        "loss", adds to each `Credit` in the results the arrays `reference` and `kl_coefficient`, from which
        the loss computes the penalty."""
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

    def _penalized(self, part: ScoredPart) -> ScoredPart:
        penalties = self._of_tokens(part)
        self._penalties.append(penalties)
        if self.config.place == "loss":
            return part
        return replace(part, penalties=[self.coefficient * penalty for penalty in penalties])

    def _of_tokens(self, part: ScoredPart) -> Sequence[float]:
        """Returns the KL penalty of each sampled token of `part`, before it is multiplied by the coefficient
        β. Raises ValueError if `part` lacks the input that the penalty is computed from."""
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

    def _for_loss(self, credit: Credit, part: ScoredPart) -> Credit:
        assert part.reference is not None
        arrays = {
            "reference": part.reference,
            "kl_coefficient": [self.coefficient] * part.tokens,
        }
        return replace(credit, arrays={**credit.arrays, **arrays})

    def finish(
        self, groups: Sequence[ScoredGroup], credits: Sequence[GroupCredits]
    ) -> Sequence[GroupCredits]:
        """Returns the final results of the wrapped algorithm for a training step. `groups` are the groups of
        the step, and `credits` the results of `__call__` for them. If `[embedded.kl]` sets `target`, also
        adapts the coefficient of the KL penalty for the next step."""
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
        """Returns the wrapped algorithm's metrics and two more: `reference_kl`, the mean estimate of the KL
        divergence from the reference model over the last step's sampled tokens; and `kl_coefficient`, the
        coefficient of the KL penalty in that step."""
        return {**self.algorithm.metrics(), **self._metrics}

    def state_dict(self) -> dict[str, Any]:
        """Returns the current coefficient of the KL penalty and the state of the wrapped algorithm, for a
        checkpoint."""
        return {"kl_coefficient": self.coefficient, "algorithm": self.algorithm.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state of the wrapped algorithm from `state`, a result of `state_dict`. Restores the
        coefficient of the KL penalty only if `[embedded.kl]` sets `target`; without a target, the coefficient
        is the one in the run file."""
        if self.config.target is not None:
            self.coefficient = float(state.get("kl_coefficient", self.coefficient))
        self.algorithm.load_state_dict(state.get("algorithm", {}))


def adapted(coefficient: float, error: float, share: float) -> float:
    """Returns the coefficient of the KL penalty for the next step: `coefficient` · (1 + `error` · `share`).
    First clips `error` to ± `LARGEST_ERROR`, then the factor in parentheses to the range from 1 /
    `LARGEST_CHANGE` to `LARGEST_CHANGE`. `error` is (the step's mean penalty / target) − 1. `share` is the
    number of the step's episodes divided by the setting `horizon`, so a longer horizon changes the
    coefficient more slowly."""
    factor = 1 + min(max(error, -LARGEST_ERROR), LARGEST_ERROR) * share
    return coefficient * min(max(factor, 1 / LARGEST_CHANGE), LARGEST_CHANGE)
