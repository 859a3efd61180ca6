"""Pure functions that compute prime-rl's default policy loss and the log-probabilities for this loss.

π is a token's probability in the model being trained, μ its probability when it was sampled, ρ = π/μ, and A
its advantage. The loss of a batch is the mean over its trained tokens of

    loss = -[kept] · adv_tau · A · ρ + kl_tau · (log ρ)²

[kept] is 0 if π has already moved too far in the direction in which A pushes it (A > 0 and π - μ >
dppo_mask_high, or A ≤ 0 and π - μ < -dppo_mask_low), else 1. The formula (not the code) is from prime-rl 0.8,
`prime_rl/trainer/rl/loss.py`, which follows arXiv 2602.04879 (DPPO) and 2602.02276 (KL term).

Tensors are [B, T]: B sequences of T tokens. The value at position t belongs to token t, given the tokens
before it. Position 0 has no prediction: it holds 0 and must not be trained.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from air.train.config.model_options import DefaultLossConfig


def token_statistics(
    model: Any, input_ids: Tensor, temperature: float | Tensor = 1.0
) -> tuple[Tensor, Tensor]:
    """Runs a causal language model; returns each token's log-probability and its prediction's entropy.
    Both are [B, T], in nats; the entropy has no gradient. `input_ids` is [B, T] with padding on the right, so
    no attention mask is needed. `temperature`, one number or a tensor [B], divides the logits."""
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
    """Returns the log-probability of each token, as `token_statistics` does, without the entropy."""
    return token_statistics(model, input_ids, temperature)[0]


def default_loss(
    logprobs: Tensor,
    sampler_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    config: DefaultLossConfig,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns the policy loss and a dict of metrics, each summed over the trained tokens, not averaged.

    All tensors are [B, T]: log-probabilities by the model being trained (with gradient) and at the time of
    sampling, advantages, and `mask`, true for trained tokens. Metrics: `mismatch_kl`, the sum of
    ρ - log ρ - 1, is 0 if trainer and sampler agree. `is_masked` counts the tokens with [kept] = 0;
    `is_masked_high` and `is_masked_low` count those with A > 0 and with A ≤ 0.
    """
    # Values outside the mask are arbitrary: set the log-ratio to 0 there, so that no inf - inf remains.
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
    """Returns the negative log-likelihood in nats, summed where `mask` is true. Both arguments are [B, T]."""
    return -torch.where(mask, logprobs, 0.0).sum()
