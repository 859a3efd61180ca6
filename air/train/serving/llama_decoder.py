"""Passes one token of each row through a model of the Llama family, with few operations.

For single tokens of a small model, starting an operation takes longer than computing it, and transformers'
own forward pass starts about a hundred operations in each layer. `LlamaDecoder` starts a third of that
number. It uses the model's own modules and weights in the same order, so results differ only by rounding. It
reads keys and values through `row_attention`. Other models are computed by transformers. Each start of a
server compares the decoder's log-probabilities with the trainer's (`self_check`).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from air.train.model.attention import FULL_ATTENTION, windows
from air.train.serving.row_attention import attend
from air.train.serving.row_cache import RowCache

_LAYERS = {
    "transformers.models.llama.modeling_llama.LlamaDecoderLayer",
    "transformers.models.mistral.modeling_mistral.MistralDecoderLayer",
    "transformers.models.qwen2.modeling_qwen2.Qwen2DecoderLayer",
    "transformers.models.qwen3.modeling_qwen3.Qwen3DecoderLayer",
}
"""The layer classes that `_Layer` can compute: norm, attention with rotary positions, norm, gated
feed-forward part."""
_MODULES = (
    "torch.nn.modules.",
    "transformers.activations",
    *(name.rpartition(".")[0] for name in _LAYERS),
)
"""The beginnings of the names of Python modules whose classes a model may consist of. Quantised layers,
adapters and similar parts come from other modules."""


class LlamaDecoder:
    """Computes the logits for single tokens. Create it with `of`. The model's weights may change between
    calls, but none of its modules may be replaced."""

    def __init__(self, model: Any) -> None:
        self._inner, self._head = model.model, model.lm_head
        self._layers = [_Layer(layer, number) for number, layer in enumerate(model.model.layers)]

    @classmethod
    def of(cls, model: Any) -> LlamaDecoder | None:
        """Returns a decoder for a causal language model. Returns None if the model has parts that the decoder
        does not know: other layers, a sliding window, an adapter, or weights that are not float32."""
        config = model.config.get_text_config()
        layers = getattr(getattr(model, "model", None), "layers", ())
        kinds = {f"{type(layer).__module__}.{type(layer).__qualname__}" for layer in layers}
        known = (
            len(kinds) == 1
            and kinds <= _LAYERS
            and windows(config) == {FULL_ATTENTION: None}
            and config._attn_implementation == "sdpa"
            and all(p.dtype == torch.float32 for p in model.parameters())
            and all(_is_plain(part) for part in model.modules())
        )
        return cls(model) if known else None

    def logits(self, token_ids: Tensor, positions: Tensor, cache: RowCache, bias: Tensor) -> Tensor:
        """Returns the logits [R, vocabulary] after one new token in each of R rows. `token_ids` and
        `positions` are [R, 1]. Call `cache.aim` first. `bias` [R, 1, 1, columns] is added to the scores."""
        hidden = F.embedding(token_ids[:, 0], self._inner.embed_tokens.weight)
        cosine, sine = self._inner.rotary_emb(hidden, positions)
        half = cosine.shape[-1] // 2
        # Rotation needs the halves (-b, a). The sign is moved into the sine, so that (b, a) is a plain roll.
        sine = torch.cat([-sine[..., :half], sine[..., half:]], -1)
        for layer in self._layers:
            hidden = layer(hidden, cosine, sine, cache, bias)
        result: Tensor = self._head(_norm(self._inner.norm, hidden))
        return result


class _Layer:
    """One layer; it uses the modules of the model's layer."""

    def __init__(self, layer: Any, number: int) -> None:
        self._number = number
        self._before, self._after = layer.input_layernorm, layer.post_attention_layernorm
        self._attention, self._mlp = layer.self_attn, layer.mlp
        self._dim = int(layer.self_attn.head_dim)
        self._heads = layer.self_attn.q_proj.out_features // self._dim
        self._kv_heads = layer.self_attn.k_proj.out_features // self._dim
        self._q_norm = getattr(layer.self_attn, "q_norm", None)
        self._k_norm = getattr(layer.self_attn, "k_norm", None)

    def __call__(
        self, hidden: Tensor, cosine: Tensor, sine: Tensor, cache: RowCache, bias: Tensor
    ) -> Tensor:
        """Returns the layer's result [R, hidden]."""
        attention, mlp, rows, dim = self._attention, self._mlp, len(hidden), self._dim
        normed = _norm(self._before, hidden)
        queries, keys, values = (
            _linear(part, normed).view(rows, -1, dim)
            for part in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        if self._q_norm is not None:
            queries, keys = _norm(self._q_norm, queries), _norm(self._k_norm, keys)
        both = torch.cat([queries, keys], 1)
        turned = (both * cosine).addcmul_(both.roll(dim // 2, -1), sine)
        cache.put(self._number, turned[:, self._heads :], values)
        queries = turned[:, : self._heads].reshape(rows, self._kv_heads, -1, dim)
        result = attend(cache, queries * attention.scaling, bias).view(rows, -1)
        hidden = _linear(attention.o_proj, result).add_(hidden)
        normed = _norm(self._after, hidden)
        inner = mlp.act_fn(_linear(mlp.gate_proj, normed)).mul_(_linear(mlp.up_proj, normed))
        return _linear(mlp.down_proj, inner).add_(hidden)


def _linear(part: Any, inputs: Tensor) -> Tensor:
    """Returns the result of a linear layer, without the overhead of calling a module."""
    return F.linear(inputs, part.weight, part.bias)


def _norm(part: Any, inputs: Tensor) -> Tensor:
    return F.rms_norm(inputs, part.weight.shape, part.weight, part.variance_epsilon)


def _is_plain(part: nn.Module) -> bool:
    """Whether a module is of a known class and nothing was attached to it, such as a hook."""
    known = type(part).__module__.startswith(_MODULES)
    changed = part._forward_hooks or part._forward_pre_hooks or "forward" in vars(part)
    return known and not changed
