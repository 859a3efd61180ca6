"""The cross-entropy: the loss of supervised training (`sft`)."""

from __future__ import annotations

from torch import Tensor


def cross_entropy(logprobs: Tensor) -> Tensor:
    """Returns the negative sum of the tokens' log-probabilities [N], in nats: a scalar."""
    return -logprobs.sum()
