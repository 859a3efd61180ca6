"""The prefix tree of samples, and how it is split and packed into rows."""

from __future__ import annotations

import random

import numpy as np
import torch

from air.train.tree.attention import TreeMask
from air.train.tree.build import build, in_order
from air.train.tree.pack import pack
from air.train.tree.sample import Sample

CPU = torch.device("cpu")


def sample(ids: list[int], trained: int = 1, advantage: float = 1.0) -> Sample:
    mask = [False] * (len(ids) - trained) + [True] * trained
    return Sample(ids, mask, [-0.5] * len(ids), advantage, 1.0)


def random_samples(rng: random.Random, count: int) -> list[Sample]:
    """Samples of 2 to 30 tokens that begin like another one, with forks anywhere; some are equal."""
    made: list[list[int]] = []
    for _ in range(count):
        before = rng.choice(made) if made and rng.random() < 0.8 else []
        ids = before[: rng.randint(0, len(before))]
        ids = ids + [rng.randrange(3, 30) for _ in range(rng.randint(2, 12))]
        made.append(before if len(before) > 1 and rng.random() < 0.1 else ids)
    return [
        Sample(
            ids,
            [False, *(rng.random() < 0.6 for _ in ids[1:])],
            [-rng.random() for _ in ids],
            [rng.uniform(-2, 2) if rng.random() < 0.8 else 0.0 for _ in ids],
            rng.choice([0.7, 1.0]),
        )
        for ids in made
    ]


def test_a_tree_by_hand() -> None:
    #   1 ── 2 ── 3 ── 4        places 0 1 2 3
    #        │    └── 5 ── 6               4 5
    #        └── 7                         6
    tree = build(in_order([sample([1, 2, 7]), sample([1, 2, 3, 5, 6]), sample([1, 2, 3, 4])]))
    assert tree.token_ids.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert tree.parents.tolist() == [-1, 0, 1, 2, 2, 4, 1]
    assert tree.depths.tolist() == [0, 1, 2, 3, 3, 4, 2]
    assert tree.ends.tolist() == [7, 7, 6, 4, 6, 6, 7]
    assert [path.tolist() for path in tree.paths] == [[0, 1, 2, 3], [0, 1, 2, 4, 5], [0, 1, 6]]


def test_a_path_has_the_samples_tokens_and_a_token_sees_its_past() -> None:
    rng = random.Random(1)
    for count in (1, 2, 7, 20):
        tree = build(in_order(random_samples(rng, count)))
        mask = TreeMask.of([tree.parents], torch.from_numpy(tree.ends)[None]).plain()[0, 0].numpy()
        for one, path in zip(tree.samples, tree.paths, strict=True):
            assert tree.token_ids[path].tolist() == one.token_ids
            for place, at in enumerate(path):
                assert np.flatnonzero(mask[at]).tolist() == path[: place + 1].tolist()


def test_no_token_is_twice_in_a_tree() -> None:
    samples = random_samples(random.Random(2), 30)
    prefixes = {tuple(s.token_ids[: n + 1]) for s in samples for n in range(len(s.token_ids))}
    assert len(build(in_order(samples))) == len(prefixes)


def test_groups_share_a_row_unless_the_whole_mask_is_computed() -> None:
    prompts = [list(range(100, 140)), list(range(200, 230))]
    samples = [sample([*prompt, 1, n], 2) for n in range(4) for prompt in prompts]
    (batch,) = pack(samples, 1000, CPU)
    assert batch.input_ids.shape == (1, 45 + 35)
    (batch,) = pack(samples, 1000, CPU, mask_cost=0.01)
    assert batch.input_ids.shape == (2, 45)
    assert batch.tokens == 45 + 35
    assert len(batch.entries) == 16


def test_a_tree_that_is_too_long_is_split_at_its_widest_fork() -> None:
    # Two halves share 10 tokens, the samples of a half share 20 more.
    head = list(range(100, 110))
    halves = [head + list(range(start, start + 20)) for start in (200, 300)]
    samples = [sample([*half, n, n], 2) for half in halves for n in (1, 2, 3)]
    (whole,) = pack(samples, 62, CPU)
    assert whole.tokens == 10 + 2 * (20 + 3 * 2)
    first, second = pack(samples, 61, CPU)
    assert first.tokens == second.tokens == 10 + 20 + 3 * 2
    assert {s.token_ids[10] for s in first.samples} != {s.token_ids[10] for s in second.samples}


def test_nothing_packs_into_nothing() -> None:
    assert list(pack([], 100, CPU)) == []


def test_nested_prefixes_need_no_depth_of_calls() -> None:
    # 1200 samples, each one token longer than the one before.
    samples = [sample([7] * length) for length in range(2, 1202)]
    (whole,) = pack(samples, 1201, CPU)
    assert (whole.tokens, len(whole.samples)) == (1201, 1200)
    assert sum(len(b.samples) for b in pack(samples, 1201, CPU, mask_cost=1e-6)) == 1200
    assert max(b.tokens for b in pack(samples[:40], 20, CPU)) == 41  # the longest sample alone


def test_a_short_past_is_repeated_if_that_is_less_work() -> None:
    samples = [sample([9, *([n] * 50)]) for n in range(4)]
    (apart,) = pack(samples, 1000, CPU, mask_cost=0.1)
    assert apart.input_ids.shape == (4, 51)
    assert apart.mask is None
    (together,) = pack(samples, 1000, CPU, mask_cost=0.00001)
    assert together.input_ids.shape == (1, 201)


def test_every_sampled_token_has_one_entry_for_each_sample() -> None:
    samples = random_samples(random.Random(4), 25)
    wanted = sorted(
        (tuple(s.token_ids[: n + 1]), s.logprobs[n], s.advantages()[n], s.temperature)
        for s in samples
        for n, trained in enumerate(s.mask)
        if trained
    )
    for limit in (30, 100, 1000):
        seen = []
        for batch in pack(samples, limit, CPU, mask_cost=0.01):
            width = batch.input_ids.shape[1]
            flat, e = batch.input_ids.flatten(), batch.entries
            assert flat[e.positions].equal(e.token_ids)
            assert (e.parents // width).equal(e.positions // width)
            if batch.position_ids is not None:
                depths = batch.position_ids.flatten()
                assert depths[e.parents].equal(depths[e.positions] - 1)
            seen += [
                (tuple(batch.samples[int(s)].token_ids), float(p), float(a), float(t))
                for s, p, a, t in zip(
                    e.samples, e.sampler_logprobs, e.advantages, e.temperatures, strict=True
                )
            ]
        assert len(seen) == len(wanted)
        total = np.array([row[1:] for row in wanted]).sum(0)
        assert np.allclose(np.array([row[1:] for row in seen]).sum(0), total, rtol=1e-4)
