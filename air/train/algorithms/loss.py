"""The default policy loss of prime-rl and the log-probabilities that it needs, as pure functions.

Per trained token, with trainer probability π, sampler probability μ, ratio ρ = π/μ, advantage A:

    loss = -[kept] · adv_tau · A · ρ + kl_tau · (log ρ)²

A token is dropped from the first term when π has already moved too far in the direction in which
A pushes: A > 0 and π - μ > dppo_mask_high, or A ≤ 0 and π - μ < -dppo_mask_low. The batch's loss is
the sum over its tokens divided by their number. Source of the formula (not of the code): prime-rl
0.8, `prime_rl/trainer/rl/loss.py`, there after arXiv 2602.04879 (DPPO) and 2602.02276 (KL term).

Dimensions: B sequences, T tokens. A quantity at position t belongs to token t, given those before;
position 0 has no prediction, holds 0 and must not be trained.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from air.train.config.model_options import DefaultLossConfig


def token_statistics(
    model: Any, input_ids: Tensor, temperature: float | Tensor = 1.0
) -> tuple[Tensor, Tensor]:
    """Log-probability of each token and entropy of its prediction, both [B, T], in nats.

    Args:
        model: a causal language model; positions count from 0 and padding must be on the right
            (tokens never see what follows them, so it needs no mask).
        input_ids: [B, T].
        temperature: divides the logits; a number, or [B].

    The entropy carries no gradient.
    """
    logits = model(input_ids=input_ids, use_cache=False).logits[:, :-1].float()
    if isinstance(temperature, Tensor):
        temperature = temperature[:, None, None]
    logprobs = (logits / temperature).log_softmax(-1)
    chosen = logprobs.gather(-1, input_ids[:, 1:, None])[..., 0]
    with torch.no_grad():
        entropy = -(logprobs.exp() * logprobs).sum(-1)
    first = chosen.new_zeros((len(input_ids), 1))
    return torch.cat([first, chosen], 1), torch.cat([first, entropy], 1)


def token_logprobs(model: Any, input_ids: Tensor, temperature: float | Tensor = 1.0) -> Tensor:
    """Log-probability of each token; see `token_statistics`."""
    return token_statistics(model, input_ids, temperature)[0]


def default_loss(
    logprobs: Tensor,
    sampler_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    config: DefaultLossConfig,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss, summed over trained tokens; divide by their number over the whole batch.

    Args:
        logprobs: [B, T] of the model being trained, with gradient.
        sampler_logprobs: [B, T] of the model that sampled, at sampling time.
        advantages: [B, T].
        mask: [B, T], true where a token is trained.

    Returns:
        The sum, and sums over tokens, to be divided by the number of trained tokens: `mismatch_kl`
        (ρ - log ρ - 1: 0 where trainer and sampler agree, else positive), `is_masked`,
        `is_masked_high`, `is_masked_low`.
    """
    # Values outside the mask are arbitrary; zeroed first, they cannot become inf - inf.
    log_ratio = torch.where(mask, logprobs - sampler_logprobs, 0.0)
    moved = torch.where(mask, logprobs.exp() - sampler_logprobs.exp(), 0.0).detach()
    high = mask & (advantages > 0) & (moved > config.dppo_mask_high)
    low = mask & (advantages <= 0) & (moved < -config.dppo_mask_low)
    kept = mask & ~(high | low)
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
    """Negative log-likelihood in nats, summed over trained tokens; both arguments [B, T]."""
    return -torch.where(mask, logprobs, 0.0).sum()
