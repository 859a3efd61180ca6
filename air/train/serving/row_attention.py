"""Attention of new tokens to the keys and values in a `RowCache`, in which rows share parts.

Rows (running requests) that begin with the same tokens share one copy of the keys and values of these tokens:
one product multiplies the queries of all these rows with the copy. A second product handles each row's own
tokens. Both products fill columns of the same matrix of scores, so the softmax, in float32, is that of
ordinary attention.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from air.train.serving.row_cache import RowCache

_SHAPE = {torch.Tensor.dim, torch.Tensor.size}
"""Methods that read only the shape of a tensor."""


class RowMask(Tensor):
    """A boolean mask [rows, 1, queries, columns]. Its columns are described by `RowCache.positions`.

    SDPA attention with this mask ignores the keys and values that it is given, and reads those of the cache.
    Every other operation gets an ordinary mask tensor.
    """

    cache: RowCache
    is_causal: bool
    """Whether the rows are new and equally long, so that torch's causal attention gives the same result."""
    bias: Tensor
    """Numbers to add to the scores, [rows, 1, queries, columns]: 0 or minus infinity."""

    @classmethod
    def of(cls, visible: Tensor, cache: RowCache) -> RowMask:
        """Returns the mask for the next forward pass with `cache`. `visible` is an ordinary boolean mask."""
        mask = visible.as_subclass(cls)
        mask.cache = cache
        # A sliding window hides more than a causal mask does.
        mask.is_causal = cache.is_fresh and torch.equal(
            visible[0, 0], torch.ones_like(visible[0, 0]).tril()
        )
        mask.bias = bias_of(visible)
        return mask

    @classmethod
    def wrap(cls, masks: Tensor | dict[str, Tensor], cache: RowCache) -> Tensor | dict[str, Tensor]:
        """Wraps a model's masks as `of` does: one for all layers, or a dict by kind of layer."""
        if isinstance(masks, Tensor):
            return cls.of(masks, cache)
        return {kind: cls.of(mask, cache) for kind, mask in masks.items()}

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        mask = kwargs.get("attn_mask")
        with torch._C.DisableTorchFunctionSubclass():
            if func is F.scaled_dot_product_attention and isinstance(mask, RowMask):
                if mask.is_causal:
                    return func(*args, **{**kwargs, "attn_mask": None, "is_causal": True})
                return _attention(mask, args[0], kwargs.get("scale"))
            if func in _SHAPE or getattr(func, "__name__", "") == "__get__":
                return func(*args, **kwargs)
            return func(*map(_plain, args), **{name: _plain(v) for name, v in kwargs.items()})


def bias_of(visible: Tensor) -> Tensor:
    """Returns numbers to add to the scores: 0 where `visible` is true, minus infinity elsewhere."""
    bias = torch.zeros(visible.shape, device=visible.device)
    return bias.masked_fill_(~visible, -torch.inf)


def _plain(value: Any) -> Any:
    return value.as_subclass(Tensor) if isinstance(value, RowMask) else value


def _attention(mask: RowMask, query: Tensor, scale: float | None) -> Tensor:
    """Returns the attention of `query` [rows, heads, queries, head_dim] to the keys and values in the cache,
    in the same shape. If there is a single query, transformers may have turned heads that read the same keys
    into queries of one head; a reshape makes both forms equal."""
    cache = mask.cache
    rows, kv_heads, dim = len(query), cache.kv_heads, query.shape[-1]
    queries = query.reshape(rows, kv_heads, -1, dim).float() * (scale or dim**-0.5)
    result = attend(cache, queries, mask.bias)
    return result.to(query.dtype).reshape(*query.shape[:-1], result.shape[-1])


def attend(cache: RowCache, queries: Tensor, bias: Tensor) -> Tensor:
    """Returns the attention of `queries` to the keys and values of the cache's current layer, in the shape of
    `queries`.

    `queries` is [rows, kv_heads, n, head_dim], float32 and scaled. Its n queries are those of all heads that
    read the same keys; each head has one query per token. `bias` [rows, 1, tokens, columns] is added to the
    scores.
    """
    own_keys, own_values = cache.own()
    rows, kv_heads, count, _ = queries.shape
    columns = bias.shape[-1]
    first = columns - own_keys.shape[2]
    scores = queries.new_empty((rows, kv_heads, count, columns))
    if not cache.is_covered:
        scores[..., :first] = 0  # The bias hides what no part writes; unset memory could be NaN.
    own = torch.bmm(queries.flatten(0, 1), own_keys.flatten(0, 1).float().mT)
    scores[..., first:] = own.view(rows, kv_heads, count, -1)
    parts = cache.parts()
    for part in parts:
        keys = part.keys(cache.layer).float()
        of_part = slice(part.start, part.stop)
        scores[part.rows, :, :, of_part] = _for_all(queries[part.rows], keys.mT)
    scores.view(rows, kv_heads, -1, bias.shape[2], columns).add_(bias[:, :, None])
    weights = scores.softmax(-1)
    of_own = weights[..., first:].flatten(0, 1)
    result = torch.bmm(of_own, own_values.flatten(0, 1).float()).view(rows, kv_heads, count, -1)
    for part in parts:
        values = part.values(cache.layer).float()
        used = weights[part.rows, :, :, part.start : part.stop]
        result[part.rows] += _for_all(used, values)
    return result


def _for_all(rows: Tensor, shared: Tensor) -> Tensor:
    """Multiplies each row's matrices [rows, heads, n, k] with one shared matrix for each head, `shared`
    [heads, k, m], as a single product for all rows."""
    count, heads, lines, _ = rows.shape
    product = rows.transpose(0, 1).flatten(1, 2) @ shared
    return product.view(heads, count, lines, -1).transpose(0, 1)
