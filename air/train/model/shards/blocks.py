"""Puts a tensor together from the blocks that the ranks of a distributed trainer have written.

A block is a rectangular part of the tensor. Several things are checked: each block lies within the tensor and
has its type; two blocks do not overlap, unless they are equal copies; and together the blocks fill the
tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from air.errors import UsageError


@dataclass(frozen=True)
class Block:
    """A rectangular part of a tensor. Its values are read only when they are needed."""

    where: str
    """The file that holds the block."""
    offsets: tuple[int, ...]
    """The index of the block's first element in the whole tensor, one number for each dimension."""
    sizes: tuple[int, ...]
    read: Callable[[], torch.Tensor]

    def overlaps(self, other: Block) -> bool:
        """Whether the two blocks have an element in common."""
        spans = zip(self.offsets, self.sizes, other.offsets, other.sizes, strict=True)
        return all(a < b + m and b < a + n for a, n, b, m in spans)


@dataclass(frozen=True)
class Sharded:
    """A tensor of a sharded checkpoint."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    blocks: Sequence[Block]

    def whole(self) -> torch.Tensor:
        """Reads the blocks and returns the tensor. Raises UsageError if they do not make up the tensor."""
        distinct = self._distinct()
        result = torch.empty(self.shape, dtype=self.dtype)
        for copies in distinct:
            first = self._read(copies[0])
            for copy in copies[1:]:
                if not same_bits(first, self._read(copy)):
                    raise self.wrong(
                        copy.where,
                        f"differs from its copy in {copies[0].where}",
                        "the ranks did not hold the same weights: use another checkpoint",
                    )
            spans = zip(copies[0].offsets, copies[0].sizes, strict=True)
            result[tuple(slice(start, start + size) for start, size in spans)] = first
        return result

    def _distinct(self) -> list[list[Block]]:
        """Returns lists of blocks; the blocks of one list are copies of the same part of the tensor. Raises
        UsageError if blocks leave a gap, overlap, or are not inside the tensor."""
        places: dict[tuple[tuple[int, ...], tuple[int, ...]], list[Block]] = {}
        for block in self.blocks:
            fits = len(block.offsets) == len(block.sizes) == len(self.shape) and all(
                min(start, size) >= 0 and start + size <= length
                for start, size, length in zip(block.offsets, block.sizes, self.shape, strict=True)
            )
            if not fits:
                raise self.wrong(
                    block.where,
                    f"a block of shape {block.sizes} at {block.offsets} is not inside {self.shape}",
                )
            if math.prod(block.sizes):
                places.setdefault((block.offsets, block.sizes), []).append(block)
        distinct = list(places.values())
        for number, one in enumerate(distinct):
            for other in distinct[:number]:
                if one[0].overlaps(other[0]):
                    raise self.wrong(one[0].where, f"overlaps a block in {other[0].where}")
        filled, wanted = sum(math.prod(one[0].sizes) for one in distinct), math.prod(self.shape)
        if filled != wanted:
            where = self.blocks[0].where if self.blocks else "the checkpoint"
            raise self.wrong(where, f"only {filled} of {wanted} elements are there")
        return distinct

    def _read(self, block: Block) -> torch.Tensor:
        tensor = block.read()
        if tuple(tensor.shape) != block.sizes or tensor.dtype != self.dtype:
            raise self.wrong(
                block.where,
                f"has the shape {tuple(tensor.shape)} and the type {tensor.dtype}, "
                f"not {block.sizes} and {self.dtype}",
            )
        return tensor

    def wrong(
        self, where: str, message: str, remedy: str = "is the checkpoint complete, and of one run?"
    ) -> UsageError:
        """Returns a UsageError that says why this tensor cannot be put together."""
        return UsageError(f"{self.name}: {message}", where=where, remedy=remedy)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same shape, type and bits. Equal NaNs count as the same."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    left, right = (tensor.detach().contiguous().reshape(-1) for tensor in (one, other))
    return torch.equal(left.view(torch.uint8), right.view(torch.uint8))
