"""Measures how far the trainer's log-probabilities of sampled tokens are from the sampler's.

If tokens are sampled with the weights that are being trained (on-policy), both log-probabilities are equal up
to rounding. If they differ more, the sampler does not compute the same policy as the trainer, and the
gradients are wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from air.train.diagnosis.sampler_checks import CAUSES, on_policy

if TYPE_CHECKING:
    from torch import Tensor

    from air.train.loop.rollout import Group
    from air.train.tree.sample import Sample

_LOG = logging.getLogger(__name__)
Floats = npt.NDArray[np.float64]
EXACT = {"float32": 1e-4, "float64": 1e-4}
"""The largest mean `mismatch_kl` (the divergence between the sampler's and the trainer's probabilities of
on-policy tokens) that rounding explains, in nats per token, by the precision of the weights."""
COARSE = 1e-2
"""The largest mean `mismatch_kl` that rounding explains, in nats per token, for the precisions of the weights
that `EXACT` does not list, such as bfloat16."""


class Exactness:
    """Collects, in one training step, the differences between the trainer's and the sampler's
    log-probabilities, by version of the sampler's weights.

    A version of the weights is the number of the step that produced them, so step N trains version N - 1.
    """

    def __init__(self, step: int, groups: Sequence[Group], *, trains_zeros: bool = False) -> None:
        """Creates an empty collector. `groups` are the groups of the training step `step`. `trains_zeros`
        says whether tokens with advantage 0 are trained (`Trainer.trains_zeros`)."""
        self._step, self._trains_zeros = step, trains_zeros
        self._rollouts = [r for g in groups for r in g.rollouts if r.ok]
        self._versions = {
            id(node): rollout.version_of(node)
            for rollout in self._rollouts
            for trace in rollout.traces
            for node in trace.nodes
        }
        self._differences: dict[int | None, list[Floats]] = {}

    def listen(self, sample: Sample, logprobs: Tensor) -> None:
        """Adds, for the trained tokens of a sample, the differences between the trainer's and the sampler's
        log-probabilities. `logprobs` are the trainer's log-probabilities of the sample's tokens.
        `Trainer.step` calls this method for each sample."""
        trained = np.asarray(sample.mask if self._trains_zeros else sample.advantages()) != 0
        theirs = np.asarray(sample.logprobs, np.float64)[trained]
        ours = logprobs.double().numpy()[trained]
        versions = self._of_tokens(sample)[trained]
        for version in dict.fromkeys(versions):
            self._differences.setdefault(version, []).append((ours - theirs)[versions == version])

    def _of_tokens(self, sample: Sample) -> npt.NDArray[np.object_]:
        """Returns, for each token of a sample, the version of the weights that sampled it: the number of the
        training step that produced them, or None if not known."""
        if not sample.nodes:
            return np.full(len(sample.mask), None)
        each = [[self._versions.get(id(node))] * len(node.mask) for node in sample.nodes]
        return np.array([version for part in each for version in part], dtype=object)

    def metrics(self) -> dict[str, Any]:
        """Returns the metrics of the step, such as `mismatch_kl/all/mean` and `off_policy/max`;
        docs/training.md describes them. A metric is left out if there are no tokens or episodes to compute it
        from."""
        row: dict[str, Any] = {}
        # As in prime-rl, an episode is as old as its oldest reply.
        played = [r.weights_version for r in self._rollouts if r.weights_version is not None]
        if played:
            staleness = [self._step - 1 - version for version in played]
            row["weights_version"] = min(played)
            row["off_policy/mean"] = float(np.mean(staleness))
            row["off_policy/max"] = float(max(staleness))
        if not self._differences:
            return row
        parts = {version: np.concatenate(d) for version, d in self._differences.items()}
        every = _report(np.concatenate(list(parts.values())))
        row["mismatch_kl/all/mean"] = every["mismatch_kl_mean"]
        row["mismatch_kl/all/max"] = every["mismatch_kl_max"]
        row["logprob_diff/mean"] = every["logprob_diff_mean"]
        row["logprob_diff/max"] = every["logprob_diff_max"]
        known = {version: part for version, part in parts.items() if version is not None}
        row["off_policy/tokens"] = sum(
            len(part) for version, part in known.items() if version != self._step - 1
        )
        row["versions"] = {str(version): _report(part) for version, part in sorted(known.items())}
        return row


def mismatch_kl(differences: Floats) -> Floats:
    """Returns ρ - log ρ - 1 for each token. `differences` are log ρ: the trainer's log-probability of the
    token minus the sampler's. The mean over sampled tokens is an estimate of KL(sampler ‖ trainer)."""
    return np.expm1(differences) - differences


def _report(differences: Floats) -> dict[str, float]:
    kl, apart = mismatch_kl(differences), np.abs(differences)
    return {
        "tokens": len(differences),
        "mismatch_kl_mean": float(kl.mean()),
        "mismatch_kl_max": float(kl.max()),
        "logprob_diff_mean": float(apart.mean()),
        "logprob_diff_max": float(apart.max()),
    }


def drifts(row: Mapping[str, Any], dtype: str) -> bool:
    """Whether the sampler's log-probabilities in one step differed by more than rounding from the trainer's,
    for tokens that both computed with the same weights. `row` is the step's line of `metrics.jsonl`; `dtype`
    is the precision of the weights, such as `float32`."""
    version = on_policy(row)
    return version is not None and version["mismatch_kl_mean"] > EXACT.get(dtype, COARSE)


def warn_of_drift(row: Mapping[str, Any], earlier: Iterable[Mapping[str, Any]], dtype: str) -> None:
    """Logs a warning if the trainer and the sampler differ (`drifts`) in `row`, a line of `metrics.jsonl`,
    but in none of the `earlier` lines of the run. `dtype` is the type of the policy's weights."""
    if drifts(row, dtype) and not any(drifts(one, dtype) for one in earlier):
        version = row["versions"][str(row["step"] - 1)]
        _LOG.warning(
            "step %d: the trainer gives the sampled tokens other probabilities than the sampler did: "
            "mismatch_kl %.2g nats per token, largest difference of a log-probability %.2g nats; likely "
            "causes: %s",
            row["step"],
            version["mismatch_kl_mean"],
            version["logprob_diff_max"],
            CAUSES,
        )
