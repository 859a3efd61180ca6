"""Gradient checkpointing changes the memory of an update, not its result."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from air.errors import UsageError
from air.train.config.model_options import AdamWConfig
from air.train.loop.trainer import Trainer
from air.train.model.policy import Policy
from air.train.tree.sample import Sample


def policy() -> Policy:
    config = Qwen3Config(
        vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=4, head_dim=8,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
    )  # fmt: skip
    torch.manual_seed(0)
    return Policy(Qwen3ForCausalLM(config).eval(), None, "model")


def samples() -> list[Sample]:
    head = list(range(1, 31))
    return [
        Sample([*head, *([n] * 20)], [False] * 30 + [True] * 20, [-4.0] * 50, n - 2.5, 1.0)
        for n in range(1, 5)
    ]


def trained(model: Policy, **options: Any) -> tuple[dict[str, float], int, list[torch.Tensor]]:
    """An update's metrics, the numbers that the forward pass keeps, and the weights after the update."""
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.data_ptr()] = tensor.numel()
        return tensor

    trainer = Trainer(model, AdamWConfig(lr=1e-3), **options)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        metrics = trainer.step(samples())
    weights = [p.detach() for p in model.model.parameters()]
    return metrics, sum(kept.values()), weights


def test_layers_that_are_computed_again_give_the_same_update() -> None:
    plain, kept, weights = trained(policy())
    again, kept_again, same = trained(policy(), gradient_checkpointing=True)
    assert again["loss"] == pytest.approx(plain["loss"], rel=1e-6)
    assert again["grad_norm"] == pytest.approx(plain["grad_norm"], rel=1e-5)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(weights, same, strict=True))
    assert kept_again < 0.7 * kept


def test_the_model_is_as_before_afterwards() -> None:
    model = policy()
    trained(model, gradient_checkpointing=True)
    assert not any(module.training for module in model.model.modules())
    assert not any(getattr(m, "gradient_checkpointing", False) for m in model.model.modules())


def test_a_model_without_such_layers_is_refused() -> None:
    model = policy()
    model.model.model.layers = torch.nn.ModuleList()
    with pytest.raises(UsageError, match="gradient_checkpointing"):
        Trainer(model, AdamWConfig(), gradient_checkpointing=True)
