"""Attention in a row that holds token trees (prefix trees of training samples): each token attends only to
its ancestors (the tokens before it in its sample) and itself.

`TreeMask` is a mask for any attention implementation. With SDPA attention (torch's scaled dot-product
attention), attention is computed faster: the row is divided into runs. A run is a range of tokens in which
every token's parent (the preceding token of its sample) is the token directly before it in the row. The
queries of a run are compared only with the run's ancestors and the run itself, so pairs of tokens in
different branches cost nothing. On a CPU, the module `fused_attention` is faster still.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from air.train.tree.build import Ints
from air.train.tree.fused_attention import AttentionCall, Ranges, RunAttention, joined

QUERIES = 256
"""The largest number of queries for which one attention call computes a run (consecutive tokens, each the
parent of the next) that attends to tokens before it. A longer run is computed in chunks of this size, which
bounds the size of the mask."""
_SHAPE = {torch.Tensor.dim, torch.Tensor.size}
"""The torch methods that read only the shape of a mask. For these, `TreeMask` builds no ordinary mask
tensor."""


@dataclass(frozen=True)
class Run:
    """A range of consecutive tokens that one attention call can compute: the positions in a row of a
    micro-batch from `start` up to, but not including, `end`. The parent of each token (the preceding token of
    its sample) is the token directly before it. Only the first token's parent may be any earlier token of the
    row, or none."""

    start: int
    end: int
    blocks: tuple[int, ...]
    """The indices of those blocks of the row that contain the run's ancestors and the run itself, in order:
    the tokens to which the run attends. `Runs` divides the row into blocks."""


@dataclass(frozen=True)
class Runs:
    """One row of a micro-batch, divided into runs and, more finely, into blocks, so that attention need not
    compute pairs of tokens in different branches of a token tree. A run is a range of tokens in which each
    token's parent (the preceding token of its sample) is the token directly before it. A block is a range of
    tokens to which any other run attends either completely or not at all."""

    runs: Sequence[Run]
    lengths: Sequence[int]
    """The number of tokens in each block of the row, in order."""

    def calls(self, row: int) -> list[AttentionCall]:
        """Returns the list of attention calls from which `RunAttention` computes this row's attention: first
        the causal calls, in each of which a run attends to itself, then the calls in which all runs with the
        same ancestors attend to these. `row` is the index of the row in the micro-batch."""
        ends = list(accumulate(self.lengths))
        ranges = list(zip([0, *ends], ends, strict=False))
        alike: dict[Ranges, list[tuple[int, int]]] = {}
        for run in self.runs:
            before = joined(ranges[block] for block in run.blocks if ends[block] <= run.start)
            alike.setdefault(before, []).append((run.start, run.end))
        own = [((run.start, run.end),) for run in self.runs]
        return [
            *(AttentionCall(row, run, run, causal=True) for run in own),
            *(
                AttentionCall(row, joined(of), keys, causal=False)
                for keys, of in alike.items()
                if keys
            ),
        ]

    @classmethod
    def of(cls, parents: Ints) -> Self:
        """Divides one row of a micro-batch into runs (ranges in which each token's parent is the token
        directly before it) and blocks (ranges to which any other run attends completely or not at all), and
        returns the result. `parents` has, for each token of the row, the position of its parent (the
        preceding token of its sample), or -1 for the first token of a token tree."""
        places = np.arange(len(parents))
        starts = np.flatnonzero((parents != places - 1) | (parents < 0)).tolist()
        forks = {int(parents[start]) + 1 for start in starts}
        edges = sorted({*starts, *forks, len(parents)} - {0})
        blocks = list(pairwise([0, *edges]))
        runs: list[Run] = []
        for start, end in pairwise([*starts, len(parents)]):
            parent = int(parents[start])
            before: tuple[int, ...] = ()
            if parent >= 0:
                above = runs[bisect_left(starts, parent + 1) - 1]
                before = tuple(block for block in above.blocks if blocks[block][0] <= parent)
            first, last = (bisect_left(blocks, (place,)) for place in (start, end))
            runs.append(Run(start, end, (*before, *range(first, last))))
        return cls(runs, [end - start for start, end in blocks])


class TreeMask(Tensor):
    """A boolean attention mask [B, 1, T, T] for rows that hold token trees (prefix trees of training
    samples). It is true if the query token (third dimension) attends to the key token (fourth dimension).

    torch's `scaled_dot_product_attention` with this mask is computed separately for each run: a range of
    tokens in which each token's parent is the token directly before it. So pairs of tokens in different
    branches cost nothing. Every other torch function gets an ordinary mask tensor instead, which is built at
    the first use.
    """

    rows: Sequence[Runs]
    ends: Tensor
    _plain: Tensor | None
    _staircase: Tensor | None
    _calls: list[AttentionCall] | None

    @classmethod
    def of(cls, parents: Sequence[Ints], ends: Tensor) -> TreeMask:
        """Returns the mask of B rows, each of which holds one token tree. For each row, `parents` has an
        array [T] with the position of each token's parent, the preceding token of its sample (-1: none).
        `ends` [B, T] has one more than the position of each token's last descendant."""
        count, length = ends.shape
        shape = torch.ones(1, dtype=torch.bool, device=ends.device).expand(count, 1, length, length)
        mask = shape.as_subclass(cls)
        mask.rows, mask.ends = [Runs.of(each) for each in parents], ends
        mask._plain = mask._staircase = mask._calls = None
        return mask

    def calls(self) -> list[AttentionCall]:
        """Returns the list of attention calls (which queries attend to which keys in one call) from which
        `RunAttention` computes the attention of all rows."""
        if self._calls is None:
            self._calls = [call for row, runs in enumerate(self.rows) for call in runs.calls(row)]
        return self._calls

    def plain(self) -> Tensor:
        """Returns the mask as an ordinary boolean tensor [B, 1, T, T]."""
        if self._plain is None:
            places = torch.arange(self.ends.shape[1], device=self.ends.device)
            seen = (places[:, None] >= places) & (places[:, None] < self.ends[:, None, :])
            self._plain = seen[:, None]
        return self._plain

    def staircase(self, queries: int, keys: int, like: Tensor) -> Tensor:
        """Returns an additive mask [queries, keys] for `queries` consecutive tokens, the last of which
        attends to all `keys` keys, and each other to one key less than the next one. The mask is 0 for a key
        to which a query attends, else -inf. The result is a view of one tensor that all calls share; its type
        and device are those of `like`."""
        steps = self._staircase
        if steps is None or steps.dtype != like.dtype:
            width = int(self.ends.shape[1])
            steps = torch.full((QUERIES, width + QUERIES), -torch.inf, dtype=like.dtype)
            steps = self._staircase = steps.triu(width + 1).to(like.device)
        first = steps.shape[1] - QUERIES - (keys - queries)
        return steps[:queries, first : first + keys]

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
            if func is F.scaled_dot_product_attention and isinstance(mask, TreeMask):
                return _attention(mask, *args, **{**kwargs, "attn_mask": None})
            if func in _SHAPE or getattr(func, "__name__", "") == "__get__":
                return func(*args, **kwargs)
            plain = {name: _plain(value) for name, value in kwargs.items()}
            return func(*map(_plain, args), **plain)


def _plain(value: Any) -> Any:
    return value.plain() if isinstance(value, TreeMask) else value


def _attention(mask: TreeMask, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Computes scaled dot-product attention of `query`, `key` and `value` [B, heads, T, head_dim] under a
    tree mask, and returns a tensor of this shape. Each run of tokens (consecutive ones, each the parent of
    the next) is computed separately, so that pairs of tokens in different branches are not computed.
    `options` are further arguments of torch's function."""
    if _fits_run_attention(query, key, value, options):
        result: Tensor = RunAttention.apply(  # type: ignore[no-untyped-call]
            query, key, value, mask.calls(), options.get("scale")
        )
        return result
    rows = []
    for number, runs in enumerate(mask.rows):
        q, k, v = (each[number : number + 1] for each in (query, key, value))
        rows.append(_row(mask, runs, q, k, v, options))
    return rows[0] if len(rows) == 1 else torch.cat(rows)


def _fits_run_attention(query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> bool:
    """Returns whether `RunAttention` can compute these tensors: they are on a CPU, query, key and value have
    the same shape, and there is no dropout."""
    same = query.shape == key.shape == value.shape
    return query.device.type == "cpu" and same and not options.get("dropout_p")


def _row(
    mask: TreeMask, runs: Runs, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]
) -> Tensor:
    queries = torch.split(query, [run.end - run.start for run in runs.runs], 2)
    keys, values = (torch.split(each, list(runs.lengths), 2) for each in (key, value))
    results = []
    for run, own in zip(runs.runs, queries, strict=True):
        k, v = (torch.cat([blocks[b] for b in run.blocks], 2) for blocks in (keys, values))
        if k.shape[2] == own.shape[2]:
            causal = {**options, "is_causal": True}
            results.append(F.scaled_dot_product_attention(own, k, v, **causal))
            continue
        past = k.shape[2] - own.shape[2]
        for chunk in torch.split(own, QUERIES, 2):
            past += chunk.shape[2]
            steps = {**options, "attn_mask": mask.staircase(chunk.shape[2], past, chunk)}
            results.append(
                F.scaled_dot_product_attention(chunk, k[:, :, :past], v[:, :, :past], **steps)
            )
    return torch.cat(results, 2)
