"""Small models of many families with random weights, large enough for a wrong mask to show."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

from air.train.model.policy import Policy

VOCAB = 64
_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GPT_SIZES = {
    "vocab_size": VOCAB,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_MIXED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": _SIZES,
    "qwen2": _SIZES,
    "qwen2 window": {**_SIZES, **_MIXED, "use_sliding_window": True},
    "qwen3": {**_SIZES, "head_dim": 8},
    "gemma2": {**_SIZES, **_MIXED, "head_dim": 8, "query_pre_attn_scalar": 8},
    "gemma3_text": {**_SIZES, **_MIXED, "head_dim": 8, "query_pre_attn_scalar": 8},
    "phi3": {**_SIZES, "sliding_window": 6},
    "mistral": {**_SIZES, "sliding_window": 6},
    "olmo2": _SIZES,
    "granite": {**_SIZES, "attention_multiplier": 0.3},
    "gpt2": _GPT_SIZES,
    "gptj": {**_GPT_SIZES, "rotary_dim": 4},
    "codegen": {**_GPT_SIZES, "rotary_dim": 4},
    "opt": {**_SIZES, "ffn_dim": 48, "word_embed_proj_dim": 32},
}
"""Settings of each family's config, by model type and perhaps a note. Windows are shorter than prompts."""
CHANGED_LOGITS: dict[str, dict[str, Any]] = {
    "cohere": {**_SIZES, "logit_scale": 0.25},
    "granite scaled": {**_SIZES, "logits_scaling": 4.0, "embedding_multiplier": 2.0},
    "gemma2 capped": {**FAMILIES["gemma2"], "final_logit_softcapping": 2.0},
}
"""Further models, which scale or cap their logits."""
ONLY_EAGER = {"gemma2", "gptj", "codegen"}
"""The model types that have no `sdpa` attention, or cap its scores."""


def pairs(names: Iterable[str]) -> list[tuple[str, str]]:
    """Every family of `names` with each attention implementation that it has."""
    return [
        (name, attention)
        for name in names
        for attention in ("sdpa", "eager")
        if attention == "eager" or name.split()[0] not in ONLY_EAGER
    ]


def model(family: str, attention: str = "sdpa", *, spread: float = 0.3) -> Any:
    """A model of this family. Its weights, whose standard deviation is `spread`, are large, so that
    predictions depend on what is attended to."""
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = {**FAMILIES, **CHANGED_LOGITS}[family]
    config = AutoConfig.for_model(family.split()[0], **settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        built: Any = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
        with torch.no_grad():
            for weights in built.parameters():
                if weights.ndim > 1:
                    weights.normal_(0, spread)
    return built.eval()


class Float64Norm(torch.nn.Module):
    """An RMS norm that computes in float64. Those of transformers compute in float32, whatever they get."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self._epsilon = getattr(norm, "variance_epsilon", None) or norm.eps
        self._added = float(type(norm).__name__.startswith("Gemma"))  # they multiply by 1 + weight
        self.weight = norm.weight

    def forward(self, hidden: Tensor) -> Tensor:
        scale = (hidden.square().mean(-1, keepdim=True) + self._epsilon).rsqrt()
        return hidden * scale * (self.weight + self._added)


def to_float64(model: Any) -> Any:
    """Converts a model to float64, its norms included."""
    model.double()
    for parent in list(model.modules()):
        for name, part in list(parent.named_children()):
            if type(part).__name__.endswith("RMSNorm"):
                setattr(parent, name, Float64Norm(part))
    return model


EXACT = {torch.float32: 1e-5, torch.float64: 1e-9}
"""The largest difference, in nats, of equal log-probabilities that are computed in different orders. At least
ten times what was measured."""
FLOAT64 = [*[pair for pair in pairs(FAMILIES) if pair[1] == "sdpa"], ("gpt2", "eager")]
"""The families that can compute in float64. The other eager attentions have a softmax in float32."""
PRECISE = [
    (family, attention, dtype)
    for dtype, those in ((torch.float32, pairs(FAMILIES)), (torch.float64, FLOAT64))
    for family, attention in those
]
"""The families, attentions and types for which `EXACT` holds with the policies of `precise`."""
IN_ONE_TYPE = [
    pytest.param(
        *case,
        marks=[pytest.mark.full] if case[2] == torch.float32 and case[:2] in FLOAT64 else [],
    )
    for case in PRECISE
]
"""`PRECISE`, where a family and attention that can compute in float64 also does so in float32 only by
`make test-all`."""


def precise(family: str, attention: str, dtype: torch.dtype) -> Policy:
    """A policy whose rounding is far below `EXACT`: one of float64, or one of float32 with small weights, so
    that the logits are small. There a wrong token still moves log-probabilities by more than `EXACT`."""
    if dtype == torch.float64:
        return Policy(to_float64(model(family, attention)), NoPadding(), family)
    return Policy(model(family, attention, spread=0.05), NoPadding(), family)


class NoPadding:
    """The part of a tokenizer that a sampler reads."""

    pad_token_id = None


def policy(family: str, attention: str = "sdpa") -> Policy:
    return Policy(model(family, attention), NoPadding(), family)
