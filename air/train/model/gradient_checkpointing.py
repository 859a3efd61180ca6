"""Gradient checkpointing: each layer stores only its input, and the backward pass computes the layer again.

This saves most of the memory that activations take, and costs the time of one more forward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from air.errors import UsageError


def check_layers(model: Any, name: str) -> None:
    """Raises UsageError, which names the model `name`, if gradient checkpointing with `recomputed` is
    impossible: if the model has no layers that support it, or has layers with dropout of their own."""
    layers = _layers(model)
    problem = "" if layers else "has no layers that can be computed again in the backward pass"
    if any(getattr(layer, "dropout", 0.0) not in (0, 0.0) for layer in layers):
        problem = "has layers with dropout of their own"
    if problem:
        raise UsageError(
            problem, where=name, remedy="leave out [embedded] gradient_checkpointing = true"
        )


@contextmanager
def recomputed(model: Any) -> Iterator[None]:
    """Context manager: during the `with` block, forward passes of `model` use gradient checkpointing. For
    this, the layers are set to training mode, but the modules inside them stay in evaluation mode, so the
    results do not change."""
    layers = _layers(model)
    again = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
    try:
        for layer in layers:
            layer._gradient_checkpointing_func = again
            layer.gradient_checkpointing = layer.training = True
        yield
    finally:
        for layer in layers:
            layer.gradient_checkpointing = layer.training = False


def _layers(model: Any) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
