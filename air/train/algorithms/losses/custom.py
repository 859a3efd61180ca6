"""The loss `custom`: a function that the user wrote, called once for each training sample (one conversation),
as in prime-rl 0.8:

    function(inputs: SampleInputs, **kwargs) -> object with `loss` (a scalar, with gradient) and `metrics`

`SampleInputs` has the fields of prime-rl's `LossInputs` (`prime_rl/trainer/rl/loss.py`), so that one function
works with both training engines. It has only the tokens that are trained, so `loss_mask` is true everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from air.errors import ConfigError
from air.train.algorithms.losses.base import LossInputs, TokenLosses
from air.train.config.loss_options import CustomLossConfig

_KEY = "trainer.loss.import_path"


@dataclass(frozen=True)
class SampleInputs:
    """The argument `inputs` of the user's loss function: the n trained tokens of one training sample (one
    conversation). All tensors are [n]."""

    trainer_logprobs: Tensor
    """The log-probability of each token under the model that is being trained, with gradient."""
    inference_logprobs: Tensor
    """The log-probability of each token when it was sampled."""
    advantages: Tensor
    loss_mask: Tensor
    """True everywhere, because these inputs contain only trained tokens."""
    ref_logprobs: Tensor | None = None
    """Always None: the embedded engine does not pass the reference model's log-probabilities to a custom
    loss."""
    loss_weights: Tensor | None = None
    """Always None, which means that each token has the weight 1."""


def custom_loss(inputs: LossInputs, config: CustomLossConfig) -> TokenLosses:
    """Calls the user's loss function once for each training sample (one conversation) of the micro-batch.

    Returns the losses [N] of the micro-batch's entries. An entry is a pair of a sampled token and a sample
    that trains this token. The losses of a sample's entries add up to the loss that the user's function
    returned for this sample. Raises ConfigError if the function returns a loss that is not a scalar with a
    gradient, or a metric that is not a tensor. Raises ValueError if `inputs.samples` is None.
    """
    function = config.function()
    if inputs.samples is None:
        raise ValueError("a custom loss needs to know which entries are of one sample")
    losses = torch.zeros_like(inputs.logprobs)
    sums: dict[str, Tensor] = {}
    for number in sorted(set(inputs.samples.tolist())):
        own = inputs.samples == number
        result = function(
            SampleInputs(
                inputs.logprobs[own],
                inputs.sampler_logprobs[own],
                inputs.advantages[own],
                torch.ones_like(inputs.logprobs[own]).bool(),
            ),
            **config.kwargs,
        )
        loss, metrics = _checked(result, config)
        # All tokens of a sample have one weight, so any of its tokens may carry the loss.
        first = own.nonzero()[0]
        losses = losses.index_add(0, first, loss.reshape(1).to(losses.dtype))
        for name, value in metrics.items():
            sums[name] = sums.get(name, torch.zeros(())) + value.detach().float().mean().cpu()
    left_out = torch.zeros_like(inputs.logprobs).bool()
    return TokenLosses(losses, left_out, {f"{name}/mean": value for name, value in sums.items()})


def _checked(result: Any, config: CustomLossConfig) -> tuple[Tensor, Mapping[str, Tensor]]:
    loss, metrics = getattr(result, "loss", None), getattr(result, "metrics", None)
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
        raise ConfigError(
            f"{config.import_path!r} must return an object whose `loss` is a scalar tensor with a gradient, "
            f"got {loss!r}",
            where=_KEY,
        )
    if not isinstance(metrics, Mapping) or not all(
        isinstance(value, Tensor) for value in metrics.values()
    ):
        raise ConfigError(
            f"{config.import_path!r} must return `metrics`, tensors by name, got {metrics!r}",
            where=_KEY,
        )
    return loss, metrics
