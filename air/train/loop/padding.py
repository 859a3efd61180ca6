"""Groups token lists into micro-batches of bounded size and pads them to tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def micro_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Groups sequences of similar length into micro-batches; returns for each the indices of its sequences.

    `lengths` are the lengths of all sequences, in tokens. In each micro-batch, the number of sequences times
    the length of the longest is at most `max_tokens`. A longer sequence has a micro-batch of its own.
    """
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
    """Returns the rows as one tensor of shape [number of rows, length of the longest row].

    Shorter rows are extended at their end with the value `fill`.
    """
    width = max(len(row) for row in rows)
    padded = [[*row, *([fill] * (width - len(row)))] for row in rows]
    return torch.tensor(padded, dtype=dtype, device=device)
