"""The key-value cache of all running requests of air's inference server, as a subclass of transformers' class
`Cache`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from air.train.serving.prefix_cache import Block, Part

_COLUMNS = 64
"""The number of columns by which the tensors of the cache are enlarged at a time. (Enlarging copies a tensor,
so it must not happen for each new token.) A column has a place for one token of each row."""
NOWHERE = 2**40
"""The position that is assigned to a column of the key-value cache without a token. It is larger than the
position of any query, so under a causal mask no query attends to this column."""

Rows = slice | Tensor
"""Selects some rows of a batch: a slice or a tensor of row numbers, to index the first dimension of a
tensor."""


@dataclass(frozen=True)
class SharedPart:
    """The keys and values of consecutive tokens, at the positions `start` to `stop - 1`, of which several
    rows read the same copy. A row is a request in a forward pass. The field `rows` selects the rows that
    begin with the same tokens up to `stop` and read this copy."""

    block: Block
    start: int
    """The position of the first of these tokens: the number of tokens before it in the row."""
    stop: int
    rows: Rows

    def keys(self, layer: int) -> Tensor:
        """Returns the attention keys of these tokens in the layer with the index `layer`, [kv_heads, tokens,
        head_dim]."""
        return self.block[layer][:, : self.stop - self.start]

    def values(self, layer: int) -> Tensor:
        """Returns the attention values of these tokens in the layer with the index `layer`, [kv_heads,
        tokens, head_dim]."""
        return self.block[len(self.block) // 2 + layer][:, : self.stop - self.start]


class RowCache(Cache):
    """The key-value cache of at most `max_rows` running requests. Each request has one row.

    A row begins with shared parts: tokens whose keys and values are stored in the prefix cache
    (`PrefixCache`), where other rows may read them, too. The row's own tokens follow. Their keys and values
    are stored in this object: for each layer, in two tensors [rows, kv_heads, columns, head_dim]. Before each
    forward pass, the caller must call `aim`, which says how many new tokens each row gets.
    """

    def __init__(self, max_rows: int) -> None:
        super().__init__(layers=[])
        self.max_rows = max_rows
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._capacity = (0, 0)
        self._shared: list[list[Part]] = [[] for _ in range(max_rows)]
        self._offsets = [0] * max_rows
        """The number of tokens of each row that the row reads from the prefix cache; its own tokens follow
        them."""
        self._first = 0
        self._starts: list[int] = []
        self._counts: list[int] = []
        self._length = 0
        self.in_parts = False
        """Whether attention in this forward pass reads shared prefixes directly in the prefix cache (see the
        argument of `aim`)."""
        self._parts: list[SharedPart] = []
        self._layer = 0
        self._covered = self._single = False
        self._targets: Tensor | None = None
        """Where the new tokens' keys and values are stored, if each row gets one new token in this forward
        pass: indices [rows · kv_heads] into a layer's tensor, viewed as [rows · kv_heads · columns,
        head_dim]. They are the same for all layers, and computed in the first one; None before."""

    def has(self, row: int, shared: Sequence[Part]) -> bool:
        """Returns whether row `row` already reads exactly the parts `shared` from the prefix cache. Then no
        call of `place` is needed for this row."""
        return [part.key for part in self._shared[row]] == [part.key for part in shared]

    def offset(self, row: int) -> int:
        """Returns the number of tokens that the row `row` reads from the prefix cache. The tokens after them
        are stored in this object."""
        return self._offsets[row]

    def place(self, row: int, shared: Sequence[Part], own: Block) -> None:
        """Sets the contents of the row `row`. The row begins with the parts `shared` of the prefix cache,
        which are not copied. `own` has the keys and values of the tokens after these parts, which are copied
        into this cache; an empty list means that there are no such tokens."""
        self._shared[row] = list(shared)
        self._offsets[row] = sum(part.count for part in shared)
        if not own:
            return
        count = own[0].shape[1]
        self._reserve(row + 1, count)
        half = len(own) // 2
        for store, tensors in ((self._keys, own[:half]), (self._values, own[half:])):
            for layer, tensor in enumerate(tensors):
                self._buffer(store, layer, tensor)[row, :, :count] = tensor

    def aim(
        self, first: int, starts: Sequence[int], counts: Sequence[int], device: Any, in_parts: bool
    ) -> None:
        """Prepares the next forward pass, which computes new tokens for consecutive rows (requests); `first`
        is the number of the first row.

        Row `first` + n already has `starts[n]` tokens and gets `counts[n]` new tokens. If `in_parts` is true,
        attention is computed by `row_attention`, which reads shared prefixes directly, through the methods
        `parts` and `own`. Otherwise, the method `update` copies the keys and values of all tokens into one
        tensor for the model's own attention.
        """
        rows = range(first, first + len(starts))
        self._first, self._counts, self.in_parts = first, list(counts), in_parts
        self._starts = [start - self._offsets[row] for row, start in zip(rows, starts, strict=True)]
        self._length = max(s + c for s, c in zip(starts, counts, strict=True))
        self._reserve(first + len(starts), self._own_columns())
        self._parts = self._grouped(device) if in_parts else []
        self._covered = len(set(self._offsets[first : first + len(starts)])) == 1
        self._targets, self._single = None, set(counts) == {1}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Stores the keys and values of the new tokens, [rows, kv_heads, tokens, head_dim], in the layer
        `layer_idx`. transformers calls this method. Rows with fewer new tokens than others must be padded at
        the beginning.

        Returns the keys and values of all tokens of these rows in this layer. After `aim` with `in_parts`,
        returns only those of the new tokens, because attention then reads the cache itself.
        """
        stores = ((self._keys, key_states), (self._values, value_states))
        for store, new in stores:
            if self._single:
                self._put(store, layer_idx, new[:, :, -1])
                continue
            buffer = self._buffer(store, layer_idx, new)
            for number, (start, count) in enumerate(zip(self._starts, self._counts, strict=True)):
                target = buffer[self._first + number, :, start : start + count]
                target.copy_(new[number, :, -count:])
        self._layer = layer_idx
        if self.in_parts:
            return key_states, value_states
        keys, values = (
            self._whole(store, kind, layer_idx) for kind, (store, _) in enumerate(stores)
        )
        return keys, values

    def positions(self, device: Any) -> Tensor:
        """Returns the position of the token in each column of the attention scores, [rows, columns], with
        `NOWHERE` for a column without a token. (The result has only one row if all requests have the same
        positions.) After `aim` with `in_parts`, the tokens that are read from the prefix cache have the first
        columns, and the rows' own tokens have the others."""
        if not self.in_parts:
            return torch.arange(self._length, device=device)[None]
        offsets = torch.tensor(self._offsets[self._first :][: len(self._starts)], device=device)
        shared = torch.arange(self._shared_columns(), device=device)[None]
        shared = shared.masked_fill(shared >= offsets[:, None], NOWHERE)
        own = torch.arange(self._own_columns(), device=device)[None] + offsets[:, None]
        return torch.cat([shared, own], 1)

    def parts(self) -> list[SharedPart]:
        """Returns the parts of the prefix cache that the rows (requests) of the present forward pass read. A
        part that several rows read occurs once, with all these rows."""
        return self._parts

    def own(self) -> tuple[Tensor, Tensor]:
        """Returns the keys and the values of the rows' own tokens, which are not read from the prefix cache,
        in the current layer. Both are [rows, kv_heads, columns, head_dim]."""
        rows = slice(self._first, self._first + len(self._starts))
        columns = self._own_columns()
        keys, values = self._keys[self._layer], self._values[self._layer]
        return keys[rows, :, :columns], values[rows, :, :columns]

    @property
    def kv_heads(self) -> int:
        """The number of key-value heads."""
        return self._keys[self._layer].shape[1]

    @property
    def is_covered(self) -> bool:
        """Whether all rows (requests) of the forward pass read the same number of tokens from the prefix
        cache. If so, there are no empty columns among those of the shared tokens, so attention need not clear
        the scores of empty columns."""
        return self._covered

    @property
    def is_fresh(self) -> bool:
        """Whether no row (request) of the forward pass has earlier tokens, and all rows get the same number
        of new tokens. If so, torch's ordinary causal attention can be used."""
        return not any(self._starts) and not self._shared_columns() and len(set(self._counts)) == 1

    @property
    def layer(self) -> int:
        """The index of the current layer: the layer of the model whose keys and values `update` stored last.
        The method `own` returns keys and values of this layer."""
        return self._layer

    def read(self, row: int, start: int, stop: int) -> Block:
        """Returns the keys and values of the tokens at the positions `start` to `stop - 1` of the row `row`,
        as a list with the keys of each layer, followed by the values of each layer."""
        pieces: list[Block] = []
        at = 0
        for part in self._shared[row]:
            low, high = max(start - at, 0), min(stop - at, part.count)
            if low < high:
                pieces.append([tensor[:, low:high] for tensor in part.block])
            at += part.count
        if stop > at:
            low, high = max(start - at, 0), stop - at
            pieces.append([tensor[row, :, low:high] for tensor in (*self._keys, *self._values)])
        return [torch.cat(tensors, 1) for tensors in zip(*pieces, strict=True)]

    def move(self, source: int, target: int, length: int) -> None:
        """Moves the content of row `source`, which has `length` tokens, to row `target`."""
        if own := length - self._offsets[source]:
            for buffer in (*self._keys, *self._values):
                buffer[target, :, :own] = buffer[source, :, :own]
        self._shared[target], self._offsets[target] = self._shared[source], self._offsets[source]
        self.free(source)

    def free(self, row: int) -> None:
        """Drops the references to parts of the prefix cache from row `row`, whose request has ended. So the
        memory of these parts can be freed once the prefix cache has removed them."""
        self._shared[row], self._offsets[row] = [], 0
        self._parts = []  # the parts of the last forward pass

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Returns the number of tokens, including new ones, of the longest row in the present forward pass.
        transformers calls this method. `layer_idx` has no effect; the base class demands it."""
        return self._length

    def _put(self, store: list[Tensor], layer: int, new: Tensor) -> None:
        buffer = self._buffer(store, layer, new[:, :, None])
        if self._targets is None or len(self._targets) != new.shape[0] * new.shape[1]:
            self._targets = self._vectors(new.shape[1], buffer.shape[2]).to(new.device)
        vectors = new.reshape(-1, new.shape[-1])
        buffer.view(-1, new.shape[-1]).index_copy_(0, self._targets, vectors)

    def _vectors(self, heads: int, columns: int) -> Tensor:
        """Returns where the new token of each row is stored, as indices [rows · heads] into a layer's tensor,
        viewed as [rows · heads · columns, head_dim]. `columns` is the number of columns of this tensor."""
        rows = torch.arange(self._first, self._first + len(self._starts))
        lines = rows[:, None] * heads + torch.arange(heads)
        return (lines * columns + torch.tensor(self._starts)[:, None]).flatten()

    def _grouped(self, device: Any) -> list[SharedPart]:
        readers: dict[tuple[int, int, int], list[int]] = {}
        blocks: dict[int, Block] = {}
        for number in range(len(self._starts)):
            start = 0
            for part in self._shared[self._first + number]:
                blocks[id(part.block)] = part.block
                key = (id(part.block), start, start + part.count)
                readers.setdefault(key, []).append(number)
                start += part.count
        return [
            SharedPart(blocks[block], start, stop, _index(rows, device))
            for (block, start, stop), rows in readers.items()
        ]

    def _own_columns(self) -> int:
        return max(s + c for s, c in zip(self._starts, self._counts, strict=True))

    def _shared_columns(self) -> int:
        return max(self._offsets[self._first : self._first + len(self._starts)])

    def _whole(self, store: list[Tensor], kind: int, layer: int) -> Tensor:
        """Returns the keys (if `kind` is 0) or the values (if `kind` is 1) of all tokens of the rows in the
        forward pass, in the layer `layer`, ordered by position: [rows, heads, tokens, head_dim]. `store` has
        the tensors of this kind, one for each layer, with the rows' own tokens; the others are copied from
        the prefix cache."""
        buffer, count = store[layer], len(self._starts)
        if not self._shared_columns():
            return buffer[self._first : self._first + count, :, : self._length]
        whole = buffer.new_zeros((count, buffer.shape[1], self._length, buffer.shape[3]))
        for number, (start, new) in enumerate(zip(self._starts, self._counts, strict=True)):
            row, at = self._first + number, 0
            for part in self._shared[row]:
                tensor = part.block[kind * (len(part.block) // 2) + layer]
                whole[number, :, at : at + part.count] = tensor[:, : part.count]
                at += part.count
            own = start + new
            whole[number, :, at : at + own] = buffer[row, :, :own]
        return whole

    def _reserve(self, rows: int, columns: int) -> None:
        have_rows, have_columns = self._capacity
        if rows > have_rows:
            have_rows = max(rows, min(2 * have_rows, self.max_rows))
        if columns > have_columns:
            have_columns = -(-max(columns, have_columns * 5 // 4) // _COLUMNS) * _COLUMNS
        self._capacity = have_rows, have_columns

    def _buffer(self, store: list[Tensor], layer: int, like: Tensor) -> Tensor:
        """Returns the tensor in `store` for the layer `layer`. If there is none, or if it has fewer rows or
        columns than were reserved, creates or enlarges it first. A new tensor has the number of heads
        (dimension -3), head_dim (dimension -1), data type and device of `like`."""
        rows, columns = self._capacity
        if (
            layer < len(store)
            and store[layer].shape[0] == rows
            and store[layer].shape[2] == columns
        ):
            return store[layer]
        # Zeros, because a masked column has the weight 0, and 0 times NaN (in unset memory) would be NaN.
        new = like.new_zeros((rows, like.shape[-3], columns, like.shape[-1]))
        if layer == len(store):
            store.append(new)
        else:
            old = store[layer]
            new[: old.shape[0], :, : old.shape[2]] = old
            store[layer] = new
        return new


def _index(rows: list[int], device: Any) -> Rows:
    """Returns row numbers as an index of a tensor's first dimension: a slice if they are consecutive, because
    indexing with a slice makes no copy; otherwise a tensor on `device`."""
    if rows == list(range(rows[0], rows[-1] + 1)):
        return slice(rows[0], rows[-1] + 1)
    return torch.tensor(rows, device=device)
