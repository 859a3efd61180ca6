"""The loss `ppo_clip`: PPO's clipped objective, with a lower and an upper bound.

ρ is a token's probability under the model being trained divided by its probability when it was sampled; A is
its advantage:

    loss = max(-A · ρ, -A · clip(ρ, 1 - clip_low, 1 + clip_high))

`clip_low` and `clip_high` are settings. From Schulman et al. 2017 (arXiv 1707.06347); two bounds as in DAPO
(arXiv 2503.14476). An algorithm may replace `clip_high` by an upper bound for each group, as `adpo` does.
"""

from __future__ import annotations

import torch

from air.train.algorithms.losses.base import LossInputs, TokenLosses
from air.train.config.loss_options import PPOClipLossConfig


def ppo_clip_loss(inputs: LossInputs, config: PPOClipLossConfig) -> TokenLosses:
    """Returns the loss `ppo_clip` of each entry: a pair of a sampled token and a training sample that trains
    this token. In the result, `left_out` is true for the entries without gradient: those whose ratio (the
    token's probability now divided by its probability at sampling) is above the upper bound if the advantage
    is positive, or below the lower bound if it is negative."""
    advantages, ratio = inputs.advantages, inputs.log_ratio.exp()
    bound = inputs.arrays.get("clip_high", torch.full_like(advantages, config.clip_high))
    clipped = torch.clamp(ratio, torch.full_like(bound, 1 - config.clip_low), 1 + bound)
    loss, alternative = -advantages * ratio, -advantages * clipped
    return TokenLosses(torch.maximum(loss, alternative), left_out=(alternative > loss).detach())
