"""The losses that the trainer minimises, one file each, and the terms that may be added to them.

To add a policy loss, write a file with a function that computes the loss, and a class of the loss's settings
in `air.train.config.loss_options`. Then add the class and the function to the table `POLICY_LOSSES` of this
module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from air.train.algorithms.losses.base import LossInputs, TokenLosses
from air.train.algorithms.losses.cross_entropy import cross_entropy_loss
from air.train.algorithms.losses.custom import custom_loss
from air.train.algorithms.losses.default import default_loss
from air.train.algorithms.losses.ipo import ipo_loss
from air.train.algorithms.losses.kl import KL
from air.train.algorithms.losses.ppo_clip import ppo_clip_loss
from air.train.config.loss_options import (
    CrossEntropyLossConfig,
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
    CrossEntropyLossConfig: cross_entropy_loss,
    CustomLossConfig: custom_loss,
}
"""The table of policy losses: maps the class of a loss's settings to the function that computes the loss."""


def total_loss(
    inputs: LossInputs,
    entropy: Tensor,
    config: PolicyLossConfig,
    kl: KLEstimator | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns the total loss of each entry [N] (the policy loss, minus the entropy bonus, plus the KL
    penalty), and metrics (scalar tensors by name), each summed over the entries. An entry is a pair of a
    sampled token and a training sample that trains this token.

    `entropy` [N] has the entropy of the distribution that predicted each entry's token; it carries a gradient
    if `config` sets an entropy coefficient. `kl` names the estimator of the KL penalty; None: no penalty. The
    penalty is multiplied by `inputs.arrays["kl_coefficient"]`. It is computed from the reference model's
    log-probabilities in `inputs.arrays["reference"]`; the estimator `full` uses `inputs.divergence` instead.

    Metrics: `mismatch_kl` is the sum of ρ - log ρ - 1, where ρ is the probability of a token in the trainer
    divided by its probability at sampling; it is 0 if both are equal. `is_masked` counts the entries whose
    policy gradient the loss leaves out; `is_masked_high` counts those with a positive advantage,
    `is_masked_low` those with a negative advantage. Metrics of the loss `custom` have a slash in their names,
    and are summed over the samples.
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
