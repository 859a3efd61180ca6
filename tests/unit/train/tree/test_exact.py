"""Training on token trees gives the loss and the gradients of training on each sample alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from air.train.algorithms.losses.base import LossInputs
from air.train.algorithms.losses.default import default_loss
from air.train.algorithms.losses.ppo_clip import ppo_clip_loss
from air.train.config.loss_options import DefaultLossConfig, PPOClipLossConfig
from air.train.tree.entry_logprobs import entry_statistics, mask_cost
from air.train.tree.pack import pack
from air.train.tree.sample import Sample
from tests.unit.train.tree.test_build import random_samples

CPU = torch.device("cpu")
SHAPE = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}
GPT = {"vocab_size": 61, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": SHAPE,
    "llama": SHAPE,
    "granite": SHAPE | {"logits_scaling": 4.0, "embedding_multiplier": 2.0},
    "cohere": SHAPE | {"logit_scale": 0.25},
    "gemma2": SHAPE | {"final_logit_softcapping": 2.0, "layer_types": ["full_attention"] * 2},
    "gemma3_text": SHAPE | {"layer_types": ["full_attention"] * 2},
    "mistral": SHAPE | {"sliding_window": 6},
    "gemma3_text+window": SHAPE
    | {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 6},
    "gpt2": GPT,
    "gptj": GPT | {"rotary_dim": 8},
    "opt": SHAPE | {"ffn_dim": 48, "word_embed_proj_dim": 32},
}


def model_of(family: str, attention: str) -> Any:
    config = transformers.AutoConfig.for_model(family.partition("+")[0], **FAMILIES[family])
    torch.manual_seed(0)
    auto: Any = transformers.AutoModelForCausalLM
    model = auto.from_config(config, attn_implementation=attention)
    for parameter in model.parameters():  # so that no two tokens are alike, and nothing is 0
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model.eval()


Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def dppo(logprobs: Tensor, sampled: Tensor, advantages: Tensor) -> Tensor:
    # Narrow bounds, so that the mask leaves out some tokens, and a large KL term.
    config = DefaultLossConfig(dppo_mask_low=0.05, dppo_mask_high=0.05, kl_tau=0.1)
    return default_loss(LossInputs(logprobs, sampled, advantages), config).loss.sum()


def clipped(logprobs: Tensor, sampled: Tensor, advantages: Tensor) -> Tensor:
    config = PPOClipLossConfig(clip_low=0.2, clip_high=0.25)
    return ppo_clip_loss(LossInputs(logprobs, sampled, advantages), config).loss.sum()


def gradients(model: Any, loss: Tensor) -> list[Tensor]:
    used = [p for p in model.parameters() if p.requires_grad]
    return [g for g in torch.autograd.grad(loss, used, allow_unused=True) if g is not None]


def dense(model: Any, samples: list[Sample], loss: Loss) -> tuple[Tensor, list[Tensor]]:
    """Every sample alone, with the plain softmax over all of its logits."""
    columns: list[tuple[Tensor, Tensor, Tensor]] = []
    for sample in samples:
        ids = torch.tensor(sample.token_ids)
        logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1]
        every = (logits / sample.temperature).log_softmax(-1)
        logprobs = every.gather(-1, ids[1:, None])[:, 0]
        mask = torch.tensor(sample.mask)[1:]
        sampled = torch.tensor(sample.logprobs)[1:]
        advantages = torch.tensor(sample.advantages())[1:]
        columns.append((logprobs[mask], sampled[mask], advantages[mask]))
    total = loss(*(torch.cat(column) for column in zip(*columns, strict=True)))
    return total, gradients(model, total)


def as_trees(
    model: Any, samples: list[Sample], loss: Loss, limit: int
) -> tuple[Tensor, list[Tensor]]:
    total = torch.zeros(())
    for batch in pack(samples, limit, CPU, mask_cost=mask_cost(model)):
        logprobs = entry_statistics(model, batch).logprobs
        total = total + loss(logprobs, batch.entries.sampler_logprobs, batch.entries.advantages)
    return total, gradients(model, total)


# gptj, and gemma 2 with its capped attention scores, have eager attention alone.
ONLY_EAGER = {"gptj", "gemma2"}
CASES = [
    (family, attention)
    for family in FAMILIES
    for attention in ("sdpa", "eager")
    if attention == "eager" or family not in ONLY_EAGER
]


@pytest.mark.parametrize(("family", "attention"), CASES)
def test_loss_and_gradients_are_those_of_the_dense_form(family: str, attention: str) -> None:
    model = model_of(family, attention)
    loss = clipped if attention == "eager" else dppo
    samples = random_samples(random.Random(len(family)), 12)
    wanted, slopes = dense(model, samples, loss)
    for limit in (40, 1000):
        value, found = as_trees(model, samples, loss, limit)
        assert value.item() == pytest.approx(wanted.item(), rel=1e-5)
        norm = torch.stack([s.norm() for s in slopes]).norm()
        error = torch.stack([(a - b).norm() for a, b in zip(found, slopes, strict=True)]).norm()
        assert error <= 1e-5 * norm


def test_a_token_that_samples_share_counts_for_each_of_them() -> None:
    # The first is clipped (its ratio rose far), the second is not: they cannot be summed before the loss.
    model = model_of("qwen3", "sdpa")
    ids = [5, 6, 7]
    samples = [
        Sample(ids, [False, False, True], [0.0, 0.0, then], 1.0, 1.0) for then in (-30.0, -0.01)
    ]
    wanted, slopes = dense(model, samples, clipped)
    value, found = as_trees(model, samples, clipped, 1000)
    assert value.item() == pytest.approx(wanted.item(), rel=1e-5)
    assert all(
        torch.allclose(a, b, rtol=1e-4, atol=1e-7) for a, b in zip(found, slopes, strict=True)
    )
