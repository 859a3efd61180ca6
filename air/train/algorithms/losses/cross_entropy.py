"""The cross-entropy: the loss of supervised training (`sft`)."""

from __future__ import annotations

from torch import Tensor


def cross_entropy(logprobs: Tensor) -> Tensor:
    """Returns the negative log-likelihood of tokens with these log-probabilities [N], in nats, summed."""
    return -logprobs.sum()
