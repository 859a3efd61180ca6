"""Groups token sequences into micro-batches whose size, including padding, is limited."""

from __future__ import annotations

from collections.abc import Sequence


def micro_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Groups sequences of similar length into micro-batches. `lengths` has the length of each sequence; the
    result has, for each micro-batch, the indices of its sequences. In each micro-batch, the number of
    sequences times the largest length is at most `max_tokens`. A sequence that is longer than `max_tokens`
    gets a micro-batch of its own."""
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if groups and (len(groups[-1]) + 1) * lengths[groups[-1][0]] <= max_tokens:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups
