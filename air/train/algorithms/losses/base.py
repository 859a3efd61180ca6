"""The inputs and outputs of policy losses.

Policy losses take entries: tensors [N] with one element for each (sampled token, sample) that is trained.
They do not depend on how tokens lie in rows, padding or trees.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class LossInputs:
    """The entries of a micro-batch: one for each pair of a sampled token and a sample that trains it. All
    tensors are [N]."""

    logprobs: Tensor
    """The log-probability of each token by the model being trained, with gradient."""
    sampler_logprobs: Tensor
    """The log-probability of each token when it was sampled."""
    advantages: Tensor
    arrays: Mapping[str, Tensor] = field(default_factory=dict)
    """Arrays that the algorithm returned besides advantages, by name (`Sample.arrays`)."""
    samples: Tensor | None = None
    """The number of the sample of each entry. None: not known; only the loss `custom` needs the numbers."""
    divergence: Tensor | None = None
    """The divergence of each prediction from the reference model's prediction, with gradient. Only the
    estimator `full` of the KL penalty needs it."""

    @property
    def log_ratio(self) -> Tensor:
        """Log ρ: each token's log-probability now minus its log-probability at sampling, with gradient."""
        return self.logprobs - self.sampler_logprobs


@dataclass(frozen=True)
class TokenLosses:
    """The result of a policy loss. Tensors are [N]."""

    loss: Tensor
    """The loss of each entry, with gradient."""
    left_out: Tensor
    """True for each entry whose policy gradient the loss leaves out because the policy has moved too far."""
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    """Further metrics by name, each summed over the samples."""
