"""Computes attention in token trees (prefix trees of training samples) on a CPU, with torch's fused kernel.
Pairs of tokens in different branches of a tree are not computed.

A row is divided into runs: ranges of tokens in which each token's parent (the preceding token of its sample)
is the token directly before it. There are two kinds of attention calls. In a causal call, a run attends to
itself. In each other call, all runs with the same ancestors attend to these ancestors, without any mask. The
results of both kinds are combined to one softmax: the kernel returns the logarithm of each call's
denominator, which gives the call's weight. In the backward pass, each call gets the denominator of the
combined softmax, so the gradients are exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Ranges = tuple[tuple[int, int], ...]
"""Ranges of positions in a row, in ascending order. Each range is a pair (first position, last position +
1)."""
_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True)
class AttentionCall:
    """The positions of the queries and keys of one attention call; both are in the row `row` of a
    micro-batch. If `causal`, queries and keys are the same run (consecutive tokens, each the parent of the
    next), under a causal mask. Otherwise every query attends to every key."""

    row: int
    queries: Ranges
    keys: Ranges
    causal: bool


def joined(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Merges adjacent ranges (where one begins at the end of the one before), and returns the resulting
    ranges, which cover the same positions. `ranges` must be in ascending order."""
    result: list[tuple[int, int]] = []
    for start, end in ranges:
        if result and result[-1][1] == start:
            result[-1] = (result[-1][0], end)
        else:
            result.append((start, end))
    return tuple(result)


class RunAttention(torch.autograd.Function):
    """A torch function that computes scaled dot-product attention of tensors [B, heads, T, head_dim] from
    several attention calls (the argument `calls`). In `calls`, the causal calls (in which a run of
    consecutive tokens attends to itself) must come first, and together they must contain every query once.
    The argument `scale` multiplies the scores; None: 1 / sqrt(head_dim)."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        calls: Sequence[AttentionCall],
        scale: float | None,
    ) -> Tensor:
        out = torch.empty_like(query.transpose(1, 2)).transpose(1, 2)
        kind = torch.promote_types(query.dtype, torch.float32)
        denominators = torch.empty(query.shape[:3], dtype=kind)
        for call in calls:
            q = _read(query, call.row, call.queries)
            k, v = (_read(each, call.row, call.keys) for each in (key, value))
            result, logs = _forward(q, k, v, 0.0, call.causal, scale=scale)
            if not call.causal:
                own, own_logs = (
                    _read(each, call.row, call.queries) for each in (out, denominators)
                )
                both = torch.logaddexp(own_logs, logs)
                result = result * (logs - both).exp()[..., None]
                result = result + own * (own_logs - both).exp()[..., None]
                logs = both
            for target, values in ((out, result), (denominators, logs)):
                for place, piece in _places(target, call.row, call.queries, values):
                    place.copy_(piece)
        ctx.save_for_backward(query, key, value, out, denominators)
        ctx.calls, ctx.scale = calls, scale
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, denominators = ctx.saved_tensors
        # The causal calls come first and contain every position once, so they need no zeros to add to.
        gradients = [torch.empty_like(each) for each in (query, key, value)]
        for call in ctx.calls:
            g, q, o, logs = (
                _read(each, call.row, call.queries) for each in (gradient, query, out, denominators)
            )
            k, v = (_read(each, call.row, call.keys) for each in (key, value))
            results = _backward(g, q, k, v, o, logs, 0.0, call.causal, scale=ctx.scale)
            ranges = (call.queries, call.keys, call.keys)
            for target, of, result in zip(gradients, ranges, results, strict=True):
                for place, piece in _places(target, call.row, of, result):
                    place.copy_(piece) if call.causal else place.add_(piece)
        return (*gradients, None, None)


def _read(tensor: Tensor, row: int, ranges: Ranges) -> Tensor:
    """Returns those elements of a tensor [B, heads, T, …] that are in the row with the index `row` and at the
    positions `ranges`, concatenated along T. The result is a view if there is only one range."""
    pieces = [tensor[row : row + 1, :, start:end] for start, end in ranges]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, 2)


def _places(
    tensor: Tensor, row: int, ranges: Ranges, values: Tensor
) -> Iterable[tuple[Tensor, Tensor]]:
    """Yields a pair for each range in `ranges`: a view of this range in the row with the index `row` of
    `tensor`, and the matching slice of `values`, in which the ranges are concatenated. The caller copies or
    adds each slice to its view."""
    pieces = torch.split(values, [end - start for start, end in ranges], 2)
    views = [tensor[row : row + 1, :, start:end] for start, end in ranges]
    return zip(views, pieces, strict=True)
