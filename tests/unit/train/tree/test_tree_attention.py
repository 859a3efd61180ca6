"""Attention by runs gives what attention with the whole mask gives."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F

from air.train.tree.attention import QUERIES, Runs, TreeMask
from air.train.tree.build import TokenTree, build, in_order
from air.train.tree.fused_attention import AttentionCall
from tests.unit.train.tree.test_build import random_samples, sample


def mask_of(tree: TokenTree) -> TreeMask:
    return TreeMask.of([tree.parents], torch.from_numpy(tree.ends)[None])


def check(tree: TokenTree, value_size: int = 8) -> None:
    """Values of another size than keys have no fused kernel on a CPU: runs are then computed with masks."""
    mask = mask_of(tree)
    torch.manual_seed(len(tree))
    shapes = [(1, 2, len(tree), size) for size in (8, 8, value_size)]
    inputs = [torch.randn(each, dtype=torch.double, requires_grad=True) for each in shapes]
    weights = torch.randn(shapes[2], dtype=torch.double)
    results = []
    for each in (mask, mask.plain()):
        out = F.scaled_dot_product_attention(*inputs, attn_mask=each, scale=0.3)
        assert type(out) is torch.Tensor
        results.append([out, *torch.autograd.grad(out, inputs, weights)])
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("seed", range(6))
def test_random_trees(seed: int) -> None:
    tree = build(in_order(random_samples(random.Random(seed), 1 + 3 * seed)))
    check(tree)
    check(tree, value_size=12)


def test_runs_that_are_longer_than_a_chunk_of_queries() -> None:
    rng = random.Random(7)
    tails = [[rng.randrange(50) for _ in range(QUERIES + 90)] for _ in range(3)]
    tree = build(in_order([sample([60, 61, 62, *tail]) for tail in tails]))
    check(tree)
    check(tree, value_size=12)


def test_runs_by_hand() -> None:
    #   1 ── 2 ── 3 ── 4        blocks: 0 1 | 2 | 3 | 4 5 | 6
    #        │    └── 5 ── 6
    #        └── 7
    tree = build(in_order([sample([1, 2, 3, 4]), sample([1, 2, 3, 5, 6]), sample([1, 2, 7])]))
    runs = Runs.of(tree.parents)
    assert runs.lengths == [2, 1, 1, 2, 1]
    assert [(run.start, run.end, run.blocks) for run in runs.runs] == [
        (0, 4, (0, 1, 2)),
        (4, 6, (0, 1, 3)),
        (6, 7, (0, 4)),
    ]


def test_attention_calls_by_hand() -> None:
    """Each run sees itself causally; then what is alike before it: 1 2 3 before 5 6, and 1 2 before 7."""
    tree = build(in_order([sample([1, 2, 3, 4]), sample([1, 2, 3, 5, 6]), sample([1, 2, 7])]))
    assert mask_of(tree).calls() == [
        AttentionCall(0, ((0, 4),), ((0, 4),), causal=True),
        AttentionCall(0, ((4, 6),), ((4, 6),), causal=True),
        AttentionCall(0, ((6, 7),), ((6, 7),), causal=True),
        AttentionCall(0, ((4, 6),), ((0, 3),), causal=False),
        AttentionCall(0, ((6, 7),), ((0, 2),), causal=False),
    ]


def test_other_operations_get_the_plain_mask() -> None:
    tree = build(in_order(random_samples(random.Random(3), 5)))
    mask = mask_of(tree)
    assert mask.shape == (1, 1, len(tree), len(tree))
    assert (~mask).equal(~mask.plain())
    assert mask[:, :, 2:].equal(mask.plain()[:, :, 2:])
    assert type(mask & True) is torch.Tensor
