"""The cross-entropy: the loss of supervised training, by `air sft` and by the algorithm `sft`."""

from __future__ import annotations

import torch
from torch import Tensor

from air.train.algorithms.losses.base import LossInputs, TokenLosses
from air.train.config.loss_options import CrossEntropyLossConfig


def cross_entropy(logprobs: Tensor) -> Tensor:
    """Returns the negative sum of the tokens' log-probabilities [N], in nats: a scalar."""
    return -logprobs.sum()


def cross_entropy_loss(inputs: LossInputs, _: CrossEntropyLossConfig) -> TokenLosses:
    """Returns the policy loss −A log π of each token, where the advantage A is the token's weight. As in
    prime-rl's `ce_loss_fn`, the probabilities at sampling do not count, and no token is left out."""
    loss = -inputs.advantages * inputs.logprobs
    return TokenLosses(loss, torch.zeros_like(inputs.logprobs, dtype=torch.bool))
