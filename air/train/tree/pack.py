"""Packs training samples (conversations) into micro-batches: rows of tokens that go through the model
together.

Each row holds one token tree, the prefix tree of some samples, so a prefix that these samples share goes
through the model once. If a tree has more tokens than a micro-batch may have, it is split into smaller trees,
and the tokens that the smaller trees share are repeated. Some attention implementations compute all T²
elements of the mask of a row with T tokens. For these, a tree is also split if repeating the shared tokens
costs less than the larger mask.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from air.train.model.batch_by_length import micro_batches
from air.train.tree.attention import TreeMask
from air.train.tree.build import TokenTree, build, in_order, shared_prefix
from air.train.tree.sample import Sample

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Entries:
    """The N entries of a micro-batch. An entry is a pair of a sampled token and a training sample that trains
    this token; a token that several samples share has an entry for each of them. All tensors are [N]."""

    positions: Tensor
    """The index of each entry's token in the rows of the micro-batch, which are flattened to [B · T]."""
    parents: Tensor
    """For each entry, the index (in the flattened rows) of the token before the entry's token. This token's
    hidden state predicts the entry's token."""
    token_ids: Tensor
    samples: Tensor
    """For each entry, the index in `MicroBatch.samples` of the training sample that trains the entry's
    token."""
    advantages: Tensor
    sampler_logprobs: Tensor
    temperatures: Tensor
    arrays: Mapping[str, Tensor]
    """The arrays [N] that the algorithm returned besides advantages (`Sample.arrays`), by name, with one
    number for each entry."""

    def __len__(self) -> int:
        return len(self.positions)


@dataclass(frozen=True)
class MicroBatch:
    """The B rows of T tokens that go through the model in one forward and backward pass. Each row holds one
    token tree: the prefix tree of some training samples."""

    input_ids: Tensor
    """The token ids, [B, T], padded on the right."""
    position_ids: Tensor | None
    """Each token's position in its samples, [B, T]. None if this equals the token's position in the row."""
    mask: TreeMask | None
    """The attention mask, [B, 1, T, T]. None if no tree branches, so that causal attention needs no mask."""
    entries: Entries
    samples: Sequence[Sample]
    tokens: int
    """The number of tokens in all rows, without padding."""


def pack(
    samples: Sequence[Sample],
    max_tokens: int,
    device: torch.device,
    *,
    mask_cost: float = 0.0,
) -> Iterator[MicroBatch]:
    """Yields micro-batches that together contain all samples, with their tensors on `device`. A micro-batch
    has at most `max_tokens` tokens, including padding; only a micro-batch with a single, longer sample may
    have more.

    `mask_cost` is the cost of computing one element of a row's attention mask, divided by the cost of
    computing one token. It is 0 if the attention implementation skips elements whose tokens do not attend to
    each other.
    """
    if not samples:
        return
    ordered = in_order(samples)
    trees = [build(part) for part in _split(ordered, max_tokens, mask_cost)]
    for numbers in micro_batches([len(tree) for tree in trees], max_tokens):
        yield _micro_batch([trees[number] for number in numbers], device)


def _split(samples: Sequence[Sample], max_tokens: int, mask_cost: float) -> list[Sequence[Sample]]:
    """Divides the sorted `samples` into consecutive ranges at the least total cost, and returns the samples
    of each range. Each range becomes one token tree (prefix tree). A tree has at most `max_tokens` tokens,
    unless it has a single, longer sample. The cost of a tree with T tokens is T + `mask_cost` · T²."""
    costs: list[float] = []  # costs of the ranges that are not yet part of a larger range
    kept: list[tuple[int, int]] = []
    # Backwards, so that a range comes after its parts.
    for start, end, size, divided in reversed(_ranges(samples, max_tokens, mask_cost)):
        whole = size + mask_cost * size * size
        apart = costs.pop() + costs.pop() if divided else whole
        if divided and (size > max_tokens or whole > apart):
            costs.append(apart)
        else:
            costs.append(whole)
            kept.append((start, end))
    found: list[Sequence[Sample]] = []
    done = 0
    for start, end in reversed(kept):
        if start >= done:  # else it is part of a range that becomes one tree
            found.append(samples[start:end])
            done = end
    return found


def _ranges(
    samples: Sequence[Sample], max_tokens: int, mask_cost: float
) -> list[tuple[int, int, float, bool]]:
    """Divides the sorted `samples` into two ranges, these again, and so on, and returns all ranges, from
    which `_split` chooses. Each range is a tuple: start, end (the index after the last sample), the number of
    tokens in the prefix tree of the range, and whether the range is divided further. A range is divided
    between the two neighbours that share the fewest tokens. Only a range of several samples is divided, and
    only if it has more than `max_tokens` tokens or if `mask_cost` is greater than 0.

    The order is depth-first: a divided range is followed by its first half and all parts of that half, then
    by its second half.
    """
    lengths = np.array([len(sample.token_ids) for sample in samples])
    shared = np.array([0, *(shared_prefix(a.token_ids, b.token_ids) for a, b in pairwise(samples))])
    ranges: list[tuple[int, int, float, bool]] = []
    todo = [(0, len(samples))]
    while todo:  # no recursion: nested prefixes can be as deep as the number of samples
        start, end = todo.pop()
        size = float(lengths[start:end].sum() - shared[start + 1 : end].sum())
        # The parts together never have fewer tokens than the whole range.
        divided = end - start > 1 and (size > max_tokens or mask_cost > 0)
        ranges.append((start, end, size, divided))
        if divided:
            # Split where neighbours share the fewest tokens; of several such places, in the middle one.
            inner = shared[start + 1 : end]
            places = np.flatnonzero(inner == inner.min()) + start + 1
            middle = int(places[len(places) // 2])
            todo += [(middle, end), (start, middle)]
    return ranges


def _micro_batch(trees: Sequence[TokenTree], device: torch.device) -> MicroBatch:
    width = max(len(tree) for tree in trees)
    shape = (len(trees), width)
    ids, depths, ends = np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.full(shape, width)
    parents = []
    for row, tree in enumerate(trees):
        ids[row, : len(tree)] = tree.token_ids
        depths[row, : len(tree)] = tree.depths
        ends[row, : len(tree)] = tree.ends
        # Padding is a chain of tokens of its own.
        parents.append(np.concatenate([tree.parents, [-1], np.arange(len(tree), width)])[:width])
    chains = all(len(tree) == int(tree.depths[-1]) + 1 for tree in trees)
    mask = None if chains else TreeMask.of(parents, torch.from_numpy(ends).to(device))
    return MicroBatch(
        input_ids=torch.from_numpy(ids).to(device),
        position_ids=None if chains else torch.from_numpy(depths).to(device),
        mask=mask,
        entries=_entries(trees, width, device),
        samples=[sample for tree in trees for sample in tree.samples],
        tokens=sum(len(tree) for tree in trees),
    )


def _entries(trees: Sequence[TokenTree], width: int, device: torch.device) -> Entries:
    columns: dict[str, list[Array]] = defaultdict(list)
    arrays: dict[str, list[Array]] = {
        name: [] for tree in trees for sample in tree.samples for name in sample.arrays
    }
    number = 0
    for row, tree in enumerate(trees):
        for sample, path in zip(tree.samples, tree.paths, strict=True):
            mask = np.asarray(sample.mask, bool)
            places = path[mask]
            columns["positions"].append(row * width + places)
            columns["parents"].append(row * width + tree.parents[places])
            columns["token_ids"].append(tree.token_ids[places])
            columns["samples"].append(np.full(len(places), number))
            columns["advantages"].append(_floats(sample.advantages())[mask])
            columns["sampler_logprobs"].append(_floats(sample.logprobs)[mask])
            columns["temperatures"].append(np.full(len(places), sample.temperature, np.float32))
            for name, values in arrays.items():
                values.append(_floats(sample.arrays[name])[mask])
            number += 1

    def tensors(parts: Mapping[str, list[Array]]) -> dict[str, Tensor]:
        return {name: torch.from_numpy(np.concatenate(of)).to(device) for name, of in parts.items()}

    return Entries(**tensors(columns), arrays=tensors(arrays))


def _floats(values: Sequence[float]) -> Array:
    return np.asarray(values, np.float32)
