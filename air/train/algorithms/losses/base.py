"""The inputs and outputs of policy losses, the functions from which the trainer's loss is computed.

The inputs of a policy loss are tensors [N] with one element per entry. An entry is a pair of a sampled token
and a training sample that trains this token. So a policy loss does not need to know how the trainer arranges
the tokens in rows, or merges samples with a common prefix.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class LossInputs:
    """The inputs of a policy loss: the entries of a micro-batch. An entry is a pair of a sampled token and a
    training sample that trains this token. All tensors are [N], with one element per entry."""

    logprobs: Tensor
    """The log-probability of each token under the model that is being trained, with gradient."""
    sampler_logprobs: Tensor
    """The log-probability of each token when it was sampled."""
    advantages: Tensor
    arrays: Mapping[str, Tensor] = field(default_factory=dict)
    """Arrays [N] that the algorithm returned besides advantages, by name, such as `clip_high` (the upper clip
    bound of each token) or `reference` (its log-probability under the reference model)."""
    samples: Tensor | None = None
    """For each entry, the index in the micro-batch of the training sample to which the entry belongs. None if
    not known; only the loss `custom` needs these indices."""
    divergence: Tensor | None = None
    """For each sampled token, the KL divergence of the policy's predicted distribution from that of the
    reference model, with gradient. None unless the KL penalty's estimator is `full`."""

    @property
    def log_ratio(self) -> Tensor:
        """The logarithm of ρ for each entry, a tensor [N] with gradient. ρ is the token's probability under
        the model that is being trained, divided by its probability at sampling."""
        return self.logprobs - self.sampler_logprobs


@dataclass(frozen=True)
class TokenLosses:
    """The result of a policy loss. The tensors `loss` and `left_out` are [N], with one element per entry. An
    entry is a pair of a sampled token and a training sample that trains this token."""

    loss: Tensor
    """The loss of each entry (a sampled token and a sample that trains it), with gradient."""
    left_out: Tensor
    """True for each entry (a sampled token and a sample that trains it) whose policy gradient the loss leaves
    out, because the token's probability has moved too far from that at sampling."""
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    """Further metrics of the loss by name. Each is a scalar: the sum of the metric over the micro-batch's
    samples."""
