from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from air.train.serving.prefix_cache import Block, PrefixCache, default_limit

BYTES = 2 * 3 * 4
"""Size of one token in the blocks of these tests: keys and values, one layer, 3 numbers of 4 bytes each."""


def block(tokens: Sequence[int]) -> Callable[[int, int], Block]:
    """The keys and values of these tokens: a token's key is the sum of all tokens so far, as real keys depend
    on all earlier tokens; its value is the negative."""
    keys = torch.tensor(tokens, dtype=torch.float32).cumsum(0)[None, :, None].expand(1, -1, 3)
    return lambda start, stop: [keys[:, start:stop], -keys[:, start:stop]]


def stored(cache: PrefixCache, tokens: Sequence[int]) -> int:
    """The number of tokens that the cache has, after a check that their keys and values are right."""
    parts = cache.read(tokens)
    count = cache.match(tokens)
    assert sum(part.count for part in parts) == count
    if count:
        joined = [
            torch.cat([part.block[kind][:, : part.count] for part in parts], dim=1)
            for kind in (0, 1)
        ]
        assert all(a.equal(b) for a, b in zip(joined, block(tokens)(0, count), strict=True)), tokens
    return count


def insert(cache: PrefixCache, tokens: Sequence[int]) -> None:
    cache.insert(tokens, block(tokens))


def test_a_shared_prefix_is_stored_once() -> None:
    cache = PrefixCache(1000 * BYTES)
    insert(cache, [1, 2, 3, 4])
    insert(cache, [1, 2, 7, 8, 9])
    insert(cache, [1, 2, 7])
    assert cache.bytes == cache.peak_bytes == 7 * BYTES
    assert stored(cache, [1, 2, 3, 4, 5]) == 4
    assert stored(cache, [1, 2, 7, 8, 9]) == 5
    assert stored(cache, [1, 2, 9]) == 2
    assert stored(cache, [2]) == 0


def test_the_leaf_that_was_unused_for_longest_leaves_first() -> None:
    cache = PrefixCache(6 * BYTES)
    insert(cache, [1, 2, 3])
    insert(cache, [1, 2, 4])
    insert(cache, [5, 6])
    assert cache.bytes == 6 * BYTES
    assert stored(cache, [1, 2, 3]) == 3  # used now: [5, 6] and 4 are older
    insert(cache, [7])
    assert stored(cache, [1, 2, 4]) == 2
    assert stored(cache, [1, 2, 3]) == 3
    assert stored(cache, [5, 6]) == 2
    assert stored(cache, [7]) == 1
    assert cache.peak_bytes == 6 * BYTES


def test_what_does_not_fit_is_cut() -> None:
    cache = PrefixCache(4 * BYTES + 5)
    insert(cache, [1, 2])
    insert(cache, [3, 4, 5, 6, 7, 8])
    assert stored(cache, [3, 4, 5, 6, 7, 8]) == 4
    assert stored(cache, [1, 2]) == 0
    none = PrefixCache(0)
    insert(none, [1])
    assert (none.bytes, none.match([1])) == (0, 0)


def test_removed_parts_free_their_memory() -> None:
    cache = PrefixCache(4 * BYTES)
    insert(cache, [1, 2, 3, 4])
    whole: weakref.ref[Tensor] = weakref.ref(cache.read([1])[0].block[0])
    assert whole() is not None
    insert(cache, [1, 2, 5])  # splits the node, and removes 3, 4
    assert whole() is None
    assert cache.bytes == 3 * BYTES
    parts = [weakref.ref(one.block[0]) for one in cache.read([1, 2, 5])]
    assert len(parts) == 2
    cache.clear()
    assert [part() for part in parts] == [None, None]
    assert cache.bytes == 0
    assert stored(cache, [1]) == 0


@pytest.mark.parametrize("limit", [1, 9, 40, 10_000])
def test_random_sequences(limit: int) -> None:
    """After any insertions, what the cache says it has is right, and it stays within its limit."""
    draw = random.Random(limit)
    cache = PrefixCache(limit * BYTES)
    inserted: list[list[int]] = []
    for _ in range(300):
        stem = draw.choice(inserted)[: draw.randrange(9)] if inserted else []
        tokens = [*stem, *(draw.randrange(3) for _ in range(draw.randrange(1, 9)))]
        if draw.random() < 0.5:
            insert(cache, tokens)
            inserted.append(tokens)
            assert stored(cache, tokens) == min(len(tokens), limit)
        else:
            stored(cache, tokens)
        assert cache.bytes <= limit * BYTES
    if limit == 10_000:
        assert all(stored(cache, tokens) == len(tokens) for tokens in inserted)
        nodes = {tuple(t[: n + 1]) for t in inserted for n in range(len(t))}
        assert cache.bytes == len(nodes) * BYTES


def test_default_limit() -> None:
    assert 0 < default_limit(torch.device("cpu")) < 2**50
