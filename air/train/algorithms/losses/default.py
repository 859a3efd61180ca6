"""The loss `default`: prime-rl's default policy loss (DPPO, divergence PPO, with a KL term).

π is a token's probability in the model being trained, μ its probability when it was sampled, ρ = π/μ, and A
its advantage. The loss of a token is

    loss = -[kept] · adv_tau · A · ρ + kl_tau · (log ρ)²

The other names are settings. [kept] is 0 if the policy has already moved too far in the direction of A (A > 0
and π - μ > dppo_mask_high, or A ≤ 0 and π - μ < -dppo_mask_low), else 1. The formula (not the code) is from
prime-rl 0.8, `prime_rl/trainer/rl/loss.py`, which follows arXiv 2602.04879 (DPPO) and 2602.02276 (KL term).
"""

from __future__ import annotations

import torch

from air.train.algorithms.losses.base import LossInputs, TokenLosses
from air.train.config.loss_options import DefaultLossConfig


def default_loss(inputs: LossInputs, config: DefaultLossConfig) -> TokenLosses:
    """Returns the loss `default` of each entry: a pair of a sampled token and a training sample that trains
    this token. In the result, `left_out` is true for the entries whose policy gradient the loss drops,
    because the token's probability has already moved too far in the direction of its advantage since
    sampling."""
    advantages, log_ratio = inputs.advantages, inputs.log_ratio
    moved = (inputs.logprobs.exp() - inputs.sampler_logprobs.exp()).detach()
    high = (advantages > 0) & (moved > config.dppo_mask_high)
    low = (advantages <= 0) & (moved < -config.dppo_mask_low)
    gain = torch.where(high | low, 0.0, config.adv_tau * advantages * log_ratio.exp())
    return TokenLosses(config.kl_tau * log_ratio.square() - gain, left_out=high | low)
