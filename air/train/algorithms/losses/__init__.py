"""The losses that the trainer minimises, one file each, and the terms that may be added to them.

To add a policy loss, write a file with its formula, and a class of its settings in
`air.train.config.loss_options`; then enter the loss and its settings in the table here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from air.train.algorithms.losses.base import LossInputs, TokenLosses
from air.train.algorithms.losses.custom import custom_loss
from air.train.algorithms.losses.default import default_loss
from air.train.algorithms.losses.ipo import ipo_loss
from air.train.algorithms.losses.kl import KL
from air.train.algorithms.losses.ppo_clip import ppo_clip_loss
from air.train.config.loss_options import (
    CustomLossConfig,
    DefaultLossConfig,
    IPOLossConfig,
    KLEstimator,
    PolicyLossConfig,
    PPOClipLossConfig,
)

POLICY_LOSSES: dict[type[PolicyLossConfig], Callable[[LossInputs, Any], TokenLosses]] = {
    DefaultLossConfig: default_loss,
    IPOLossConfig: ipo_loss,
    PPOClipLossConfig: ppo_clip_loss,
    CustomLossConfig: custom_loss,
}
"""The function of the policy loss for each class of settings."""


def total_loss(
    inputs: LossInputs,
    entropy: Tensor,
    config: PolicyLossConfig,
    kl: KLEstimator | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns the loss [N] of each entry with all its terms, and metrics summed over the entries.

    `entropy` [N] has the entropy of each token's prediction, with gradient if the entropy counts in the loss.
    `kl` adds the penalty for moving away from the reference, multiplied by the array `kl_coefficient`. The
    array `reference` has the reference's log-probabilities; the estimator `full` needs `inputs.divergence`.

    Metrics: `mismatch_kl`, the sum of ρ - log ρ - 1, is 0 if trainer and sampler agree. `is_masked` counts
    the entries that the policy loss leaves out; `is_masked_high` and `is_masked_low` count those of them with
    A > 0 and with A < 0. Metrics of the loss `custom` have a slash in their names, and are summed over the
    samples.
    """
    of_policy = POLICY_LOSSES[type(config)](inputs, config)
    loss, left_out = of_policy.loss, of_policy.left_out
    with torch.no_grad():
        log_ratio = inputs.log_ratio
        metrics = {
            "mismatch_kl": (log_ratio.exp() - log_ratio - 1).sum(),
            "is_masked": left_out.sum(),
            "is_masked_high": (left_out & (inputs.advantages > 0)).sum(),
            "is_masked_low": (left_out & (inputs.advantages < 0)).sum(),
            **of_policy.metrics,
        }
    if config.entropy_coefficient:
        loss = loss - config.entropy_coefficient * entropy
    if kl is not None:
        if kl == "full":
            if inputs.divergence is None:
                raise ValueError("the estimator full needs the divergence of whole predictions")
            penalty = inputs.divergence
        else:
            penalty = KL[kl](inputs.logprobs - inputs.arrays["reference"])
        loss = loss + inputs.arrays["kl_coefficient"] * penalty
    return loss, metrics
