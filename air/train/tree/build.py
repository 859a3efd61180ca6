"""Builds a token tree from training samples (conversations): a prefix that several samples share is stored
once.

The samples of a group (the episodes of one prompt) begin with the same prompt, and often with the same
earlier turns. The tree is a prefix tree (trie): a shared token has one position in the tree. The parent of a
position is the position of the preceding token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from air.train.tree.sample import Sample

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TokenTree:
    """A prefix tree of training samples. It has T positions, one for each distinct prefix of the samples. All
    arrays except `paths` have the shape [T]. The order of positions is depth-first: each position is directly
    followed by all its descendants."""

    samples: Sequence[Sample]
    token_ids: Ints
    parents: Ints
    """The position of the preceding token; -1 for the first token of a sample."""
    depths: Ints
    """The number of tokens that precede this token in each sample that contains it."""
    ends: Ints
    """One more than the position of the last descendant. So position i is an ancestor of position j, or j
    itself, if and only if i <= j < ends[i]."""
    paths: Sequence[Ints]
    """For each sample, an array with the positions in the tree of its tokens, in order."""

    def __len__(self) -> int:
        return len(self.token_ids)


def in_order(samples: Sequence[Sample]) -> list[Sample]:
    """Returns the samples sorted by their lists of token ids, so that samples with a common prefix are
    adjacent. The function `build` needs this order."""
    return sorted(samples, key=lambda sample: sample.token_ids)


def shared_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Returns the length of the longest common prefix of two token sequences."""
    length = min(len(first), len(second))
    different = np.flatnonzero(np.asarray(first[:length]) != np.asarray(second[:length]))
    return int(different[0]) if len(different) else length


def build(samples: Sequence[Sample]) -> TokenTree:
    """Returns the prefix tree of `samples`, training samples that must be sorted by `in_order`. There must be
    at least one sample."""
    paths: list[Ints] = []
    pieces: list[Sequence[int]] = []
    parents: list[Ints] = []
    size = 0
    before: Sequence[int] = ()
    path = np.empty(0, np.int64)
    for sample in samples:
        ids = sample.token_ids
        shared = shared_prefix(before, ids)
        new = np.arange(size, size + len(ids) - shared)
        path = np.concatenate([path[:shared], new])
        parents.append(np.concatenate([[-1], path[:-1]])[shared:])
        pieces.append(ids[shared:])
        paths.append(path)
        size += len(new)
        before = ids
    depths, ends = np.empty(size, np.int64), np.empty(size, np.int64)
    for path in paths:
        depths[path] = np.arange(len(path))
        ends[path] = path[-1] + 1  # a later sample's last position is higher, or the same
    return TokenTree(
        samples=samples,
        token_ids=np.concatenate([np.asarray(piece, np.int64) for piece in pieces]),
        parents=np.concatenate(parents),
        depths=depths,
        ends=ends,
        paths=paths,
    )
