"""Groups token lists into micro-batches of bounded size and pads them to tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def micro_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Groups sequences of similar length into micro-batches; returns the indices of the sequences in each.
    In each micro-batch, the number of sequences times the longest of their `lengths` is at most `max_tokens`,
    unless it is a single longer sequence."""
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if groups and (len(groups[-1]) + 1) * lengths[groups[-1][0]] <= max_tokens:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def pad(
    rows: Sequence[Sequence[float]], fill: float, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Returns the rows as one tensor [rows, longest row]; shorter rows end with copies of `fill`."""
    width = max(len(row) for row in rows)
    padded = [[*row, *([fill] * (width - len(row)))] for row in rows]
    return torch.tensor(padded, dtype=dtype, device=device)
