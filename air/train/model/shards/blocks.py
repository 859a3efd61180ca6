"""Assembles a tensor from the blocks that the ranks (processes) of a distributed trainer have written.

A block is a rectangular part of the tensor. An error is raised unless each block lies within the tensor and
has the tensor's data type; no two blocks overlap, except for equal copies of the same part; and the blocks
together fill the tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from air.errors import UsageError


@dataclass(frozen=True)
class Block:
    """A rectangular part of a tensor, stored in a file. The function `read` loads the part's values and
    returns them."""

    where: str
    """The path of the file that contains the block."""
    offsets: tuple[int, ...]
    """The index of the block's first element in the whole tensor, with one number for each dimension."""
    sizes: tuple[int, ...]
    read: Callable[[], torch.Tensor]

    def overlaps(self, other: Block) -> bool:
        """Returns whether the two blocks have an element of the tensor in common."""
        spans = zip(self.offsets, self.sizes, other.offsets, other.sizes, strict=True)
        return all(a < b + m and b < a + n for a, n, b, m in spans)


@dataclass(frozen=True)
class Sharded:
    """A tensor of a sharded checkpoint, as a list of blocks in files."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    blocks: Sequence[Block]

    def whole(self) -> torch.Tensor:
        """Reads all blocks and returns the assembled tensor. Raises UsageError if blocks are inconsistent: a
        wrong shape or data type, a gap, an overlap, or copies of the same part that differ."""
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
        """Groups the blocks by the part of the tensor that they contain, without reading them: each list of
        the result has all copies of one part. Raises UsageError if the parts leave a gap, overlap, or do not
        lie within the tensor."""
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
        """Returns a UsageError about this tensor, for the caller to raise. `message` says why the tensor
        cannot be assembled, `where` is the file with the problem, and `remedy` the advice for the user."""
        return UsageError(f"{self.name}: {message}", where=where, remedy=remedy)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns whether two tensors have the same shape, data type and bits. So NaNs with the same bits count
    as equal."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    left, right = (tensor.detach().contiguous().reshape(-1) for tensor in (one, other))
    return torch.equal(left.view(torch.uint8), right.view(torch.uint8))
