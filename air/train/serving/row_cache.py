"""The keys and values of all running requests, as a transformers cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from air.train.serving.prefix_cache import Block

_COLUMNS = 256
"""The cache grows in units of this many columns (tokens)."""


class RowCache(Cache):
    """The key-value cache of all running requests: per layer two tensors [rows, kv_heads, columns, head_dim].

    A row belongs to one request, a column to one token. Before a forward pass, `aim` says which rows get new
    tokens, and where. There are at most `max_rows` rows. The memory grows when needed, and never shrinks.
    """

    def __init__(self, max_rows: int) -> None:
        super().__init__(layers=[])
        self.max_rows = max_rows
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._capacity = (0, 0)
        self._first = 0
        self._starts: list[int] = []
        self._counts: list[int] = []
        self._columns = 0
        self._targets: tuple[Tensor, Tensor] | None = None

    def aim(self, first: int, starts: Sequence[int], counts: Sequence[int], device: Any) -> None:
        """Says what the next forward pass computes: for row `first` + n the last `counts[n]` of its tokens,
        which belong into the columns from `starts[n]` on."""
        self._first, self._starts, self._counts = first, list(starts), list(counts)
        self._columns = max(s + c for s, c in zip(starts, counts, strict=True))
        self._reserve(first + len(self._starts), self._columns)
        self._targets = None
        if set(counts) == {1}:
            rows = torch.arange(first, first + len(self._starts), device=device)
            self._targets = rows, torch.tensor(self._starts, device=device)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Stores new keys and values; returns all keys and values of these rows in the layer.
        Both arguments are [rows, kv_heads, tokens, head_dim]; shorter rows are padded at the beginning."""
        rows = slice(self._first, self._first + len(self._starts))
        in_use = []
        for store, new in ((self._keys, key_states), (self._values, value_states)):
            buffer = self._buffer(store, layer_idx, new)
            if self._targets is not None:
                buffer[self._targets[0], :, self._targets[1]] = new[:, :, -1]
            else:
                for number, (start, count) in enumerate(
                    zip(self._starts, self._counts, strict=True)
                ):
                    target = buffer[self._first + number, :, start : start + count]
                    target.copy_(new[number, :, -count:])
            in_use.append(buffer[rows, :, : self._columns])
        return in_use[0], in_use[1]

    def write(self, row: int, start: int, block: Block) -> None:
        """Copies a block of keys and values into a row, from column `start` on."""
        stop = start + block[0].shape[1]
        self._reserve(row + 1, stop)
        half = len(block) // 2
        for store, tensors in ((self._keys, block[:half]), (self._values, block[half:])):
            for layer, tensor in enumerate(tensors):
                self._buffer(store, layer, tensor)[row, :, start:stop] = tensor

    def read(self, row: int, start: int, stop: int) -> Block:
        """Returns the keys and values in some columns of a row; the tensors are views of the cache."""
        return [buffer[row, :, start:stop] for buffer in (*self._keys, *self._values)]

    def move(self, source: int, target: int, length: int) -> None:
        """Copies the first `length` columns (tokens) of row `source` into row `target`."""
        for buffer in (*self._keys, *self._values):
            buffer[target, :, :length] = buffer[source, :, :length]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Returns the number of columns in use, which is the token count of the longest request."""
        return self._columns

    def _reserve(self, rows: int, columns: int) -> None:
        have_rows, have_columns = self._capacity
        if rows > have_rows:
            have_rows = max(rows, min(2 * have_rows, self.max_rows))
        if columns > have_columns:
            have_columns = -(-columns // _COLUMNS) * _COLUMNS
        self._capacity = have_rows, have_columns

    def _buffer(self, store: list[Tensor], layer: int, like: Tensor) -> Tensor:
        """Returns the tensor of a layer, which grows to the reserved size if it is smaller. `like` has its
        number of heads and its head_dim, as dimensions -3 and -1."""
        rows, columns = self._capacity
        if (
            layer < len(store)
            and store[layer].shape[0] == rows
            and store[layer].shape[2] == columns
        ):
            return store[layer]
        # Zeros: a masked column counts with weight 0, but 0 times the NaN of unset memory is NaN.
        new = like.new_zeros((rows, like.shape[-3], columns, like.shape[-1]))
        if layer == len(store):
            store.append(new)
        else:
            old = store[layer]
            new[: old.shape[0], :, : old.shape[2]] = old
            store[layer] = new
        return new
