"""A fast forward pass for models of the Llama family that computes one new token in each row (request).

For single tokens of a small model, starting a torch operation takes longer than its computation, and the
forward pass of transformers starts about a hundred operations in each layer. `LlamaDecoder` starts a third of
that number. It uses the model's own modules and weights in the same order, so results differ only by
rounding. It reads keys and values through `row_attention`. Models of other families use transformers' forward
pass. Whenever a server starts, `self_check` compares the decoder's log-probabilities with the trainer's.
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
"""The classes of transformer layers that `_Layer` can compute. They consist of a norm, attention with rotary
position embeddings, a second norm, and a gated feed-forward layer."""
_MODULES = (
    "torch.nn.modules.",
    "transformers.activations",
    *(name.rpartition(".")[0] for name in _LAYERS),
)
"""Prefixes of the names of those Python modules whose classes `LlamaDecoder` accepts as parts of a model.
Classes of other modules, such as quantised layers and adapters, are not accepted."""


class LlamaDecoder:
    """Computes the logits after one new token in each row (request). Create a decoder with `LlamaDecoder.of`.
    The model's weights may change between calls, but its modules must not be replaced."""

    def __init__(self, model: Any) -> None:
        self._inner, self._head = model.model, model.lm_head
        self._layers = [_Layer(layer, number) for number, layer in enumerate(model.model.layers)]

    @classmethod
    def of(cls, model: Any) -> LlamaDecoder | None:
        """Returns a decoder for the causal language model `model`, or None if the decoder does not support
        it: if it has other layers, a sliding window, an adapter, weights that are not float32, or an
        attention implementation other than SDPA."""
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
        """Computes one new token in each of R rows, stores its keys and values in `cache`, and returns the
        logits [R, vocabulary] for the token after it. A row is a running request. `token_ids` and `positions`
        are [R, 1]. `bias` [R, 1, 1, columns] is added to the attention scores; a column is a place for a
        token in the cache. The caller must have called `cache.aim` for this pass."""
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
    """Computes one transformer layer with the modules and weights of the model's own layer."""

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
        """Returns the layer's output [R, hidden] for one new token in each of R rows (running requests).
        `cosine` and `sine` are the rotary position embedding. `bias` [R, 1, 1, columns] is added to the
        attention scores, one for each place of a token in `cache`."""
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
    """Returns the output of the linear module `part`, without the overhead of a module call."""
    return F.linear(inputs, part.weight, part.bias)


def _norm(part: Any, inputs: Tensor) -> Tensor:
    return F.rms_norm(inputs, part.weight.shape, part.weight, part.variance_epsilon)


def _is_plain(part: nn.Module) -> bool:
    """Returns whether `LlamaDecoder` may compute a module: whether its class is in one of the Python modules
    `_MODULES`, and it has neither hooks nor a replaced `forward`, which the decoder would skip."""
    known = type(part).__module__.startswith(_MODULES)
    changed = part._forward_hooks or part._forward_pre_hooks or "forward" in vars(part)
    return known and not changed
