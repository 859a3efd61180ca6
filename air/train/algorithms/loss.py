"""Pure functions that compute losses: prime-rl's default policy loss, and the cross-entropy.

π is a token's probability in the model being trained, μ its probability when it was sampled, ρ = π/μ, and A
its advantage. The loss of a batch is the mean over its trained tokens of

    loss = -[kept] · adv_tau · A · ρ + kl_tau · (log ρ)²

[kept] is 0 if π has already moved too far in the direction in which A pushes it (A > 0 and π - μ >
dppo_mask_high, or A ≤ 0 and π - μ < -dppo_mask_low), else 1. The formula (not the code) is from prime-rl 0.8,
`prime_rl/trainer/rl/loss.py`, which follows arXiv 2602.04879 (DPPO) and 2602.02276 (KL term).

Policy losses take entries: tensors [N] with one element for each (sampled token, sample) that is trained.
"""

from __future__ import annotations

import torch
from torch import Tensor

from air.train.config.model_options import DefaultLossConfig


def default_loss(
    logprobs: Tensor, sampler_logprobs: Tensor, advantages: Tensor, config: DefaultLossConfig
) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns the policy loss and a dict of metrics, each summed over the trained tokens, not averaged.

    All tensors are [N]: log-probabilities by the model being trained (with gradient) and at the time of
    sampling, and advantages. Metrics: `mismatch_kl`, the sum of ρ - log ρ - 1, is 0 if trainer and sampler
    agree. `is_masked` counts the tokens with [kept] = 0; `is_masked_high` and `is_masked_low` count those
    with A > 0 and with A ≤ 0.
    """
    log_ratio = logprobs - sampler_logprobs
    moved = (logprobs.exp() - sampler_logprobs.exp()).detach()
    high = (advantages > 0) & (moved > config.dppo_mask_high)
    low = (advantages <= 0) & (moved < -config.dppo_mask_low)
    kept = ~(high | low)
    gain = torch.where(kept, config.adv_tau * advantages * log_ratio.exp(), 0.0)
    loss = (config.kl_tau * log_ratio.square() - gain).sum()
    with torch.no_grad():
        metrics = {
            "mismatch_kl": (log_ratio.exp() - log_ratio - 1).sum(),
            "is_masked": (high | low).sum(),
            "is_masked_high": high.sum(),
            "is_masked_low": (low & (advantages < 0)).sum(),
        }
    return loss, metrics


def cross_entropy(logprobs: Tensor, mask: Tensor) -> Tensor:
    """Returns the negative log-likelihood in nats, summed where `mask` is true. Both arguments are [B, T],
    with any value at position 0, which has no prediction."""
    return -torch.where(mask, logprobs, 0.0).sum()
