"""Computes the attention of new tokens to cached keys and values (class `RowCache`), where requests with the
same beginning share one copy.

A row is a running request. Rows that begin with the same tokens share one copy of the keys and values of
these tokens: one matrix product computes the attention scores of all these rows with the copy. A second
product computes the scores with each row's own tokens. Both products fill columns of one matrix of scores, so
the softmax, in float32 (for float64 models in float64), is the same as in ordinary attention.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from air.train.model.logprobs import at_least_float32
from air.train.serving.kv_cache import RowCache

_SHAPE = {torch.Tensor.dim, torch.Tensor.size}
"""The methods of a torch tensor that only tell its shape. If such a method is called, it gets a `RowMask`
unchanged; all other torch functions get the same mask as an ordinary tensor."""


class RowMask(Tensor):
    """A boolean attention mask [rows, 1, queries, columns]: true if the query (a new token) attends to the
    token in the column. A row is a running request. The columns are the places for tokens in a `RowCache`;
    its method `positions` says which token is in which column.

    With this mask, torch's `scaled_dot_product_attention` ignores its arguments for keys and values, and uses
    the keys and values in the cache. All other torch functions treat this mask as an ordinary tensor.
    """

    cache: RowCache
    is_causal: bool
    """Whether torch's ordinary causal attention gives the same result. This is so if no row (request) has
    earlier tokens, all rows have equally many new tokens, and the mask is causal."""
    bias: Tensor
    """The mask as numbers that are added to the attention scores, [rows, 1, queries, columns]: 0 where the
    mask is true, otherwise minus infinity."""

    @classmethod
    def of(cls, visible: Tensor, cache: RowCache) -> RowMask:
        """Converts `visible`, an ordinary boolean mask [rows, 1, queries, columns], to a mask for the next
        forward pass with `cache`. An element is true if the query may attend to the token in the column."""
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
        """Converts ordinary boolean masks to `RowMask` objects for the next forward pass with `cache`.
        `masks` is either one mask for all layers, or a dict from types of attention layers to masks; the
        result has the same form."""
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
    """Converts a boolean mask to numbers of the same shape that are added to attention scores: 0 where
    `visible` is true, otherwise minus infinity."""
    bias = torch.zeros(visible.shape, device=visible.device)
    return bias.masked_fill_(~visible, -torch.inf)


def _plain(value: Any) -> Any:
    return value.as_subclass(Tensor) if isinstance(value, RowMask) else value


def _attention(mask: RowMask, query: Tensor, scale: float | None) -> Tensor:
    """Returns the attention output of `query` [rows, heads, queries, head_dim] over the keys and values in
    the mask's cache, in the shape of `query`. `heads` is the number of query heads. If each row has a single
    new token, transformers may instead pass the query heads that share keys as several queries of one head;
    `heads` is then the number of key-value heads."""
    cache = mask.cache
    rows, kv_heads, dim = len(query), cache.kv_heads, query.shape[-1]
    queries = query.reshape(rows, kv_heads, -1, dim)
    queries = at_least_float32(queries) * (scale or dim**-0.5)
    result = attend(cache, queries, mask.bias)
    return result.to(query.dtype).reshape(*query.shape[:-1], result.shape[-1])


def attend(cache: RowCache, queries: Tensor, bias: Tensor) -> Tensor:
    """Returns the attention output of `queries` over the keys and values that `cache` has for its current
    layer. The output has the shape of `queries`.

    `queries` is [rows, kv_heads, n, head_dim], in float32 or float64, already multiplied by the scale of
    attention. A row is a running request. Its n queries for a key-value head are those of all query heads
    that share this head, one for each of these heads and new tokens. `bias` [rows, 1, tokens, columns] is
    added to the scores; a column is a place for a token in the cache.
    """
    own_keys, own_values = cache.own()
    rows, kv_heads, count, _ = queries.shape
    columns = bias.shape[-1]
    first = columns - own_keys.shape[2]
    scores = queries.new_empty((rows, kv_heads, count, columns))
    if not cache.is_covered:
        scores[..., :first] = 0  # The bias hides what no part writes; unset memory could be NaN.
    own = torch.bmm(queries.flatten(0, 1), at_least_float32(own_keys.flatten(0, 1)).mT)
    scores[..., first:] = own.view(rows, kv_heads, count, -1)
    parts = cache.parts()
    for part in parts:
        keys = at_least_float32(part.keys(cache.layer))
        of_part = slice(part.start, part.stop)
        scores[part.rows, :, :, of_part] = _for_all(queries[part.rows], keys.mT)
    scores.view(rows, kv_heads, -1, bias.shape[2], columns).add_(bias[:, :, None])
    weights = scores.softmax(-1)
    of_own = weights[..., first:].flatten(0, 1)
    own = torch.bmm(of_own, at_least_float32(own_values.flatten(0, 1)))
    result = own.view(rows, kv_heads, count, -1)
    for part in parts:
        values = at_least_float32(part.values(cache.layer))
        used = weights[part.rows, :, :, part.start : part.stop]
        result[part.rows] += _for_all(used, values)
    return result


def _for_all(rows: Tensor, shared: Tensor) -> Tensor:
    """Returns the matrix products [rows, heads, n, m] of `rows` [rows, heads, n, k] and `shared` [heads, k,
    m]. All rows (requests) are multiplied with the same matrix of a head, so one product per head
    suffices."""
    count, heads, lines, _ = rows.shape
    product = rows.transpose(0, 1).flatten(1, 2) @ shared
    return product.view(heads, count, lines, -1).transpose(0, 1)
