"""Attention of new tokens to the keys and values in a `RowCache`, in which rows share parts.

Rows that begin with the same tokens read the keys and values of these tokens once for all of them: their
queries are multiplied with one shared copy. Each row's own tokens are a second product. Both give columns of
one matrix of scores, so the softmax, in float32, is that of ordinary attention.
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
    """A boolean mask [rows, 1, queries, columns], whose columns are those of `RowCache.positions`.

    SDPA attention with this mask ignores its keys and values, and reads those of the cache. Every other
    operation gets the plain mask.
    """

    cache: RowCache
    bias: Tensor
    """What is added to the scores, [rows, 1, 1, queries, columns]: 0 or minus infinity."""

    @classmethod
    def of(cls, visible: Tensor, cache: RowCache) -> RowMask:
        """Returns the mask for the next forward pass with `cache`, from a plain mask."""
        mask = visible.as_subclass(cls)
        bias = torch.zeros(visible.shape, device=visible.device)
        mask.bias = bias.masked_fill_(~visible, -torch.inf)[:, :, None]
        mask.cache = cache
        return mask

    @classmethod
    def wrap(cls, masks: Tensor | dict[str, Tensor], cache: RowCache) -> Tensor | dict[str, Tensor]:
        """Returns the same for the masks of a model, which may be one for each kind of layer."""
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
                return _attention(mask, args[0], kwargs.get("scale"))
            if func in _SHAPE or getattr(func, "__name__", "") == "__get__":
                return func(*args, **kwargs)
            return func(*map(_plain, args), **{name: _plain(v) for name, v in kwargs.items()})


def _plain(value: Any) -> Any:
    return value.as_subclass(Tensor) if isinstance(value, RowMask) else value


def _attention(mask: RowMask, query: Tensor, scale: float | None) -> Tensor:
    """Returns the attention of `query` to the keys and values in the cache, in the shape of `query`, which is
    [rows, heads, queries, head_dim]. For single queries transformers may have made heads that read the same
    keys the queries of one head; a reshape makes both forms the same."""
    cache = mask.cache
    own_keys, own_values = cache.own()
    rows, kv_heads, _, dim = own_keys.shape
    queries = query.reshape(rows, kv_heads, -1, dim).float() * (scale or dim**-0.5)
    scores = queries.new_empty((*queries.shape[:3], mask.shape[-1]))
    first = mask.shape[-1] - own_keys.shape[2]
    scores[..., :first] = 0  # The mask hides what no part writes; unset memory could be NaN.
    scores[..., first:] = queries @ own_keys.float().mT
    parts = cache.parts()
    for part in parts:
        keys = part.keys(cache.layer).float()
        columns = slice(part.start, part.stop)
        scores[part.rows, :, :, columns] = _for_all(queries[part.rows], keys.mT)
    # A view with the dimensions of the mask's bias, which is the same for all heads.
    scores.view(rows, kv_heads, -1, mask.shape[2], mask.shape[3]).add_(mask.bias)
    weights = scores.softmax(-1)
    result = weights[..., first:] @ own_values.float()
    for part in parts:
        values = part.values(cache.layer).float()
        used = weights[part.rows, :, :, part.start : part.stop]
        result[part.rows] += _for_all(used, values)
    return result.to(query.dtype).reshape(*query.shape[:-1], result.shape[-1])


def _for_all(rows: Tensor, shared: Tensor) -> Tensor:
    """Returns the product of each row's matrices [rows, heads, n, k] with one matrix for each head, `shared`
    [heads, k, m], as one product for all rows."""
    count, heads, lines, _ = rows.shape
    product = rows.transpose(0, 1).flatten(1, 2) @ shared
    return product.view(heads, count, lines, -1).transpose(0, 1)
