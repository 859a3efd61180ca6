"""The cross-entropy: the loss of supervised training, by the command `sft` and by the algorithm `sft`."""

from __future__ import annotations

import torch
from torch import Tensor

from air.train.algorithms.losses.base import LossInputs, TokenLosses
from air.train.config.loss_options import CrossEntropyLossConfig


def cross_entropy(logprobs: Tensor) -> Tensor:
    """Returns the cross-entropy of n tokens in nats, a scalar tensor: the negative sum of `logprobs` [n], the
    log-probabilities of the tokens."""
    return -logprobs.sum()


def cross_entropy_loss(inputs: LossInputs, _: CrossEntropyLossConfig) -> TokenLosses:
    """Returns the policy loss of each token: −A log π, where π is the token's probability, and the advantage
    A is its weight. As in prime-rl's `ce_loss_fn`, the probabilities at sampling have no effect, and no token
    is left out. The settings (the second argument) are not used; all policy losses have this argument."""
    loss = -inputs.advantages * inputs.logprobs
    return TokenLosses(loss, torch.zeros_like(inputs.logprobs, dtype=torch.bool))
