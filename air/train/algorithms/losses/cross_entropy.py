"""The cross-entropy: the loss of supervised training (`sft`)."""

from __future__ import annotations

import torch
from torch import Tensor


def cross_entropy(logprobs: Tensor, mask: Tensor) -> Tensor:
    """Returns the negative log-likelihood in nats, summed where `mask` is true. Both arguments are [B, T],
    with any value at position 0, which has no prediction."""
    return -torch.where(mask, logprobs, 0.0).sum()
