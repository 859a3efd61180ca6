"""The loss `ipo`: the loss `default`, but the sign of the advantage does not decide which tokens are left
out.

π is a token's probability in the model being trained, μ its probability when it was sampled, ρ = π/μ, and A
its advantage. The loss of a token is

    loss = -[kept] · adv_tau · A · ρ + kl_tau · (log ρ)²

The other names are settings. [kept] is 0 if |π - μ| > ipo_threshold, else 1. The formula (not the code) is
from prime-rl 0.8, `prime_rl/trainer/rl/loss.py`.
"""

from __future__ import annotations

import torch

from air.train.algorithms.losses.base import LossInputs, TokenLosses
from air.train.config.loss_options import IPOLossConfig


def ipo_loss(inputs: LossInputs, config: IPOLossConfig) -> TokenLosses:
    """Returns the loss `ipo` of each entry: a pair of a sampled token and a training sample that trains this
    token. In the result, `left_out` is true for the entries whose policy gradient the loss drops, because the
    token's probability has moved by more than the setting `ipo_threshold` since sampling."""
    log_ratio = inputs.log_ratio
    moved = (inputs.logprobs.exp() - inputs.sampler_logprobs.exp()).detach()
    far = moved.abs() > config.ipo_threshold
    gain = torch.where(far, 0.0, config.adv_tau * inputs.advantages * log_ratio.exp())
    return TokenLosses(config.kl_tau * log_ratio.square() - gain, left_out=far)
