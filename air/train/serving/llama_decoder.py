"""A fast forward pass for models of the Llama family, with which air's inference server computes the new
tokens of many requests (one request per row of the batch).

For single tokens of a small model, starting a torch operation takes longer than its computation, and the
forward pass of transformers starts about a hundred operations in each layer. `LlamaDecoder` starts a third of
that number, and multiplies with copies of the weights that are stored in the order in which the processor
reads them, which is faster (`PackedLinear`). It computes the same as the model's own modules, so results
differ only by rounding. For models of other families, transformers' forward pass is used. Whenever a server
starts, `self_check` compares the decoder's log-probabilities with the trainer's.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from air.train.model.attention import FULL_ATTENTION, windows
from air.train.serving.kv_cache import RowCache
from air.train.serving.packed_linear import PackedLinear, can_pack
from air.train.serving.row_attention import attend

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
"""Beginnings of the names of Python modules. `LlamaDecoder` supports a model only if the classes of all its
parts come from such modules; this excludes, for example, quantised layers and adapters."""


class LlamaDecoder:
    """Computes the logits for the next token of several requests at once (one request per row of the batch).
    `LlamaDecoder.of` creates a decoder.

    On a CPU the decoder holds copies of the model's weights, stored in an order with which matrix products
    are faster. It makes new copies after the weights were changed in place, for example by an optimiser.
    Before the model's modules or the storage of its weights are replaced, `release` must be called.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._layers: list[_Layer] = []
        """The model's layers, prepared for computing (on a CPU, with reordered copies of their weights).
        Empty before the first use."""
        self._head: PackedLinear | None = None
        self._versions: list[int] = []
        """For each weight of the model, how many times it had been changed in place when it was copied. A
        later change increases this number."""

    def release(self) -> None:
        """Frees the memory of the decoder's copies of the weights. The next use makes new copies."""
        self._layers, self._head = [], None

    def _prepared(self) -> PackedLinear:
        """Makes sure that the faster copies of the weights (see `PackedLinear`) exist and are up to date:
        copies the weights if they have not been copied yet, or have changed since. Returns the output head,
        the linear layer that computes the logits."""
        versions = [weight._version for weight in self._model.parameters()]
        if self._head is None or versions != self._versions:
            self.release()
            self._layers = [_Layer(layer, at) for at, layer in enumerate(self._model.model.layers)]
            self._head, self._versions = PackedLinear(self._model.lm_head), versions
        return self._head

    @classmethod
    def of(cls, model: Any) -> LlamaDecoder | None:
        """Returns a decoder for the causal language model `model`, or None if the decoder does not support
        it. All layers must be of one class in `_LAYERS` (such as Llama's), without sliding windows and
        adapters; the weights must be float32, and the attention implementation SDPA (torch's
        `scaled_dot_product_attention`)."""
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
        """Computes the model for W new tokens in each of R rows (running requests), and stores their keys and
        values in `cache`. Returns the logits [R, vocabulary] for the token that follows them.

        `token_ids` and `positions` are [R, W]; rows with fewer new tokens are padded at the beginning. `bias`
        [R, 1, W, columns] is added to the attention scores; a column is a place for a token in the cache.
        Before each call, the caller must call `cache.aim`.
        """
        head, inner = self._prepared(), self._model.model
        hidden = F.embedding(token_ids, inner.embed_tokens.weight)
        cosine, sine = inner.rotary_emb(hidden, positions)
        half = cosine.shape[-1] // 2
        # Rotation needs the halves (-b, a). The sign is moved into the sine, so that (b, a) is a plain roll.
        sine = torch.cat([-sine[..., :half], sine[..., half:]], -1)
        turn = cosine[:, :, None], sine[:, :, None]
        for layer in self._layers[:-1]:
            hidden = layer(hidden, turn, cache, bias, hidden.shape[1])
        # Of the last layer's outputs, only those of each row's last token are needed.
        hidden = self._layers[-1](hidden, turn, cache, bias, 1)
        return head(_norm(inner.norm, hidden[:, -1]))


def copied_bytes(model: Any) -> int:
    """Returns the size in bytes of the reordered copies of weights with which the decoder of `model` computes
    faster on a CPU; 0 if the model has no decoder, or its decoder uses the model's own weights."""
    if LlamaDecoder.of(model) is None:
        return 0
    weights = [part.weight for part in model.modules() if isinstance(part, nn.Linear)]
    return sum(one.numel() * one.element_size() for one in weights if can_pack(one))


class _Layer:
    """Computes one transformer layer of the model. On a CPU, it uses copies of the layer's weights in an
    order with which matrix products are faster (`PackedLinear`)."""

    def __init__(self, layer: Any, number: int) -> None:
        self._number = number
        attention, mlp = layer.self_attn, layer.mlp
        self._before, self._after = layer.input_layernorm, layer.post_attention_layernorm
        self._dim, self._scaling = int(attention.head_dim), attention.scaling
        self._heads = attention.q_proj.out_features // self._dim
        self._kv_heads = attention.k_proj.out_features // self._dim
        self._qkv = PackedLinear(attention.q_proj, attention.k_proj, attention.v_proj)
        self._out = PackedLinear(attention.o_proj)
        self._gate_up, self._down = (
            PackedLinear(mlp.gate_proj, mlp.up_proj),
            PackedLinear(mlp.down_proj),
        )
        self._activation = mlp.act_fn
        self._q_norm = getattr(attention, "q_norm", None)
        self._k_norm = getattr(attention, "k_norm", None)

    def __call__(
        self, hidden: Tensor, turn: tuple[Tensor, Tensor], cache: RowCache, bias: Tensor, count: int
    ) -> Tensor:
        """Returns the layer's output [R, count, hidden] for the last `count` of the new tokens in each of R
        rows (running requests). `hidden` [R, W, hidden] is the layer's input for all W new tokens. `turn` is
        the rotary position embedding: cosine and sine, each [R, W, 1, head_dim]. `bias` [R, 1, W, columns] is
        added to the attention scores; a column is a place for a token in `cache`."""
        queries, keys, values = self._projected(_norm(self._before, hidden), turn)
        queries, hidden = queries[:, -count:], hidden[:, -count:]
        result = self._attended(queries, keys, values, cache, bias[:, :, -count:])
        hidden = self._out(result).add_(hidden)
        gate, up = self._gate_up(_norm(self._after, hidden)).chunk(2, -1)
        return self._down(self._activation(gate).mul_(up)).add_(hidden)

    def _projected(
        self, inputs: Tensor, turn: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the queries, keys and values of W tokens in R rows, each [R, W, heads, head_dim], with
        rotated queries and keys. `inputs` [R, W, hidden] is the input of the attention, and `turn` the rotary
        position embedding: cosine and sine, each [R, W, 1, head_dim]."""
        heads, kv_heads, dim = self._heads, self._kv_heads, self._dim
        joined = self._qkv(inputs).view(*inputs.shape[:2], -1, dim)
        both, values = joined[:, :, :-kv_heads], joined[:, :, -kv_heads:]
        if self._q_norm is not None:
            queries, keys = both[:, :, :heads], both[:, :, heads:]
            both = torch.cat([_norm(self._q_norm, queries), _norm(self._k_norm, keys)], 2)
        cosine, sine = turn
        both = (both * cosine).addcmul_(both.roll(dim // 2, -1), sine)
        return both[:, :, :heads], both[:, :, heads:], values

    def _attended(
        self, queries: Tensor, keys: Tensor, values: Tensor, cache: RowCache, bias: Tensor
    ) -> Tensor:
        """Stores the keys and values of the new tokens in `cache`, and returns the attention output of
        `queries`. With R requests and W new tokens per request: `keys` and `values` are [R, W, kv_heads,
        head_dim], `queries` is [R, count, heads, head_dim], and the result is [R, count, heads · head_dim].
        `count` is the number of the last new tokens whose output is needed. `bias` [R, 1, count, columns] is
        added to the attention scores."""
        rows, count, heads, dim = queries.shape
        keys, values = cache.update(keys.transpose(1, 2), values.transpose(1, 2), self._number)
        queries = queries.transpose(1, 2)
        if cache.in_parts:
            # The queries of all heads that read the same keys become queries of one head.
            grouped = queries.reshape(rows, self._kv_heads, -1, dim) * self._scaling
            result = attend(cache, grouped, bias).reshape(rows, heads, count, dim)
        else:
            result = F.scaled_dot_product_attention(
                queries, keys, values, attn_mask=bias, scale=self._scaling, enable_gqa=True
            )
        return result.transpose(1, 2).reshape(rows, count, -1)


def _norm(part: Any, inputs: Tensor) -> Tensor:
    """Returns the output of the RMS norm `part`; for many tokens this is faster than torch's `rms_norm`."""
    scale = inputs.square().mean(-1, keepdim=True).add_(part.variance_epsilon).rsqrt_()
    return (inputs * scale).mul_(part.weight)


def _is_plain(part: nn.Module) -> bool:
    """Returns whether `LlamaDecoder` may compute the module `part` itself. Its class must be in one of the
    Python modules `_MODULES`, and it must have neither hooks nor a replaced `forward`, which the decoder
    would skip."""
    known = type(part).__module__.startswith(_MODULES)
    changed = part._forward_hooks or part._forward_pre_hooks or "forward" in vars(part)
    return known and not changed
