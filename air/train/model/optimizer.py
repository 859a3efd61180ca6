"""Builds the optimiser of a training, computes learning rates from the schedule, and updates the weights."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from air.errors import InfrastructureError, UsageError
from air.train.config.model_options import (
    ConstantSchedulerConfig,
    CosineSchedulerConfig,
    LinearSchedulerConfig,
    OptimizerConfig,
    SchedulerConfig,
    SGDConfig,
)
from air.train.devices.master_weights import MasterWeights

Stepper = torch.optim.Optimizer | MasterWeights
"""The type of all optimisers in air: a torch optimiser, or `MasterWeights` for weights of lower precision
than float32."""

_NEARLY_ZERO = 1e-8
"""A factor of the peak learning rate. If the setting `min_lr` of a schedule is 0, a warm-up starts and a
linear decay ends at this factor times the peak, not at 0."""


def optimizer(parameters: Iterable[torch.nn.Parameter], config: OptimizerConfig) -> Stepper:
    """Returns a new optimiser, with the settings `config`, for those of `parameters` that require gradients.
    Weights of lower precision than float32 get float32 copies (`MasterWeights`). Raises UsageError if no
    parameter requires gradients."""
    trained = [weights for weights in parameters if weights.requires_grad]
    if not trained:
        raise UsageError(
            "the model has no weights to train: it is a LoRA adapter",
            where="model.name",
            remedy="set [trainer.model.lora] (for sft: [model.lora]) to train the adapter on, or merge it "
            "with `air merge`",
        )

    def make(weights: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        return _torch_optimizer(weights, config)

    if all(weights.dtype == torch.float32 for weights in trained):
        return make(trained)
    return MasterWeights(trained, make)


def restore(optimizer: Stepper, state: dict[str, Any]) -> None:
    """Restores an optimiser's state from a checkpoint. Raises UsageError if the state comes from training
    with weights of another data type. Without this check, a torch optimiser would silently ignore the float32
    copies that the state of a training in bfloat16 contains."""
    if not isinstance(optimizer, MasterWeights) and "masters" in state:
        raise UsageError(
            "the checkpoint has float32 copies of the weights: it was trained in bfloat16",
            where="embedded.dtype",
            remedy='resume with dtype = "bfloat16"',
        )
    optimizer.load_state_dict(state)


def _torch_optimizer(
    parameters: list[torch.nn.Parameter], config: OptimizerConfig
) -> torch.optim.Optimizer:
    if isinstance(config, SGDConfig):
        return torch.optim.SGD(
            parameters,
            lr=config.lr,
            momentum=config.momentum,
            nesterov=config.nesterov and config.momentum > 0,
            weight_decay=config.weight_decay,
        )
    return torch.optim.AdamW(
        parameters,
        lr=config.lr,
        betas=(config.betas1, config.betas2),
        weight_decay=config.weight_decay,
        fused=True,  # no copies of the weights' size, also on a CPU
    )


def learning_rate(
    step: int, lr: float, config: SchedulerConfig, max_steps: int | None = None
) -> float:
    """Returns the learning rate of the update `step`, counted from 0. `lr` is the highest learning rate (the
    peak) of the schedule `config`. A constant schedule always gives the peak.

    A linear schedule rises from `min_lr` to the peak over `warmup_steps` updates, and falls to `min_lr` over
    the last `decay_steps` of `max_steps` updates. A cosine schedule rises in the same way, and then falls
    along half a cosine wave until `max_steps`. Raises ValueError if the schedule falls and `max_steps` is
    None.
    """
    if isinstance(config, ConstantSchedulerConfig):
        return lr
    low = config.min_lr if config.min_lr > 0 else lr * _NEARLY_ZERO
    if step < config.warmup_steps:
        return low + (lr - low) * step / config.warmup_steps
    if isinstance(config, CosineSchedulerConfig):
        if max_steps is None:
            raise ValueError("a cosine schedule needs max_steps")
        done = min(1.0, (step - config.warmup_steps) / max(1, max_steps - config.warmup_steps))
        return config.min_lr + (lr - config.min_lr) * (1 + math.cos(math.pi * done)) / 2
    return _linear_fall(step, lr, low, config, max_steps)


def _linear_fall(
    step: int, lr: float, low: float, config: LinearSchedulerConfig, max_steps: int | None
) -> float:
    if config.decay_steps == 0:
        return lr
    if max_steps is None:
        raise ValueError("a linear schedule that decays needs max_steps")
    into = step - (max_steps - config.decay_steps)
    if into <= 0:
        return lr
    return lr + (low - lr) * min(1.0, into / max(1, config.decay_steps - 1))


def update(
    optimizer: Stepper, parameters: list[torch.nn.Parameter], config: OptimizerConfig
) -> float:
    """Clips the gradients of `parameters` together to the norm `config.max_norm` (None: does not clip),
    updates the weights, and clears the gradients. Returns the norm of the gradients before clipping. If the
    gradients are not finite, leaves the weights unchanged and raises InfrastructureError."""
    limit = math.inf if config.max_norm is None else config.max_norm
    if isinstance(optimizer, MasterWeights):
        parameters = optimizer.masters  # the float32 copies, which hold the gradients
    norm = float(torch.nn.utils.clip_grad_norm_(parameters, limit))
    if not math.isfinite(norm):
        optimizer.zero_grad(set_to_none=True)
        raise InfrastructureError(f"the gradients are not finite (norm {norm}); no update was made")
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm
