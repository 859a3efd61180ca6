"""The sampler with its prefix cache: it computes less, and its answers are those of a sampler without one."""

from __future__ import annotations

import random
import weakref
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from air.train.model.logprobs import token_logprobs
from air.train.model.policy import Policy
from air.train.serving.sampler import Completion, Row, Sampler, SamplingParams
from tests.unit.train import families

PLENTY = 2**26


def sampler(policy: Policy, cache: int = PLENTY, max_batch: int = 8) -> Sampler:
    return Sampler(policy, max_batch=max_batch, max_model_len=128, prefix_cache_bytes=cache)


def finish(one: Sampler, rows: Sequence[Row]) -> list[Completion]:
    one.add(rows)
    while one.rows:
        one.step()
    return [row.completion() for row in rows]


def tokens(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(3, families.VOCAB) for _ in range(count)]


def check(policy: Policy, rows: Sequence[Row], bound: float = 1e-4) -> None:
    """The rows' answers are those of a sampler without a cache; their log-probabilities are the trainer's.

    The default bound is for float32 with large weights: both sides sum in different orders, and up to 9e-6
    nats were measured. One wrong token in the context moves these values by more than 0.05."""
    fresh = [Row(row.prompt, row.params) for row in rows]
    alone = finish(sampler(policy, 0, max_batch=max(1, len(rows))), fresh)
    for row, expected_reply in zip(rows, alone, strict=True):
        reply = row.completion()
        assert reply.token_ids == expected_reply.token_ids
        with torch.no_grad():
            ids = torch.tensor([row.prompt + reply.token_ids])
            expected = token_logprobs(policy.model, ids)[0, len(row.prompt) :]
        difference = torch.tensor(reply.logprobs, dtype=expected.dtype) - expected
        assert difference.abs().max() <= bound


@pytest.mark.slow
@pytest.mark.parametrize(("family", "attention", "dtype"), families.IN_ONE_TYPE)
def test_groups_and_turns(family: str, attention: str, dtype: torch.dtype) -> None:
    policy = families.precise(family, attention, dtype)
    draw = random.Random(6)
    shared = sampler(policy)
    prompt, other = tokens(draw, 40), tokens(draw, 9)
    params = [SamplingParams(max_tokens=3 + n, seed=n) for n in range(5)]
    rows = [Row(prompt, p) for p in params[:4]] + [Row(other, params[4])]
    finish(shared, rows)
    assert [row.cached for row in rows] == [0, 39, 39, 39, 0]
    turns = [
        Row([*r.prompt, *r.token_ids, *tokens(draw, 3 + n)], r.params) for n, r in enumerate(rows)
    ]
    finish(shared, turns)
    # The last token of a reply was never passed through the model.
    # More is found if another episode has the same tokens by chance.
    assert all(turn.cached >= row.length - 1 for row, turn in zip(rows, turns, strict=True))
    check(policy, [*rows, *turns], families.EXACT[dtype])


def test_prompts_longer_than_a_chunk(small: Policy) -> None:
    """A prompt is read in parts of 512 tokens; rows of a batch end in different parts."""
    draw = random.Random(1)
    small.model.config.max_position_embeddings = 2048
    one = Sampler(small, max_batch=4, max_model_len=1500, prefix_cache_bytes=PLENTY)
    prompts = [[draw.randrange(300) for _ in range(n)] for n in (700, 1100, 1024, 1300)]
    rows = [Row(p, SamplingParams(max_tokens=2, seed=n)) for n, p in enumerate(prompts)]
    for row, reply in zip(rows, finish(one, rows), strict=True):
        with torch.no_grad():
            ids = torch.tensor([row.prompt + reply.token_ids])
            expected = token_logprobs(small.model, ids)[0, len(row.prompt) :]
        assert torch.tensor(reply.logprobs) == pytest.approx(expected, abs=1e-5)


def test_requests_that_share_a_new_prompt_wait_for_the_first() -> None:
    policy = families.policy("llama")
    draw = random.Random(2)
    prompt = tokens(draw, 30)
    passes: list[int] = []
    policy.model.register_forward_pre_hook(
        lambda _, args, kwargs: passes.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    ends = [[first, *tokens(draw, 4)] for first in (10, 11, 12)]
    rows = [Row([*prompt, *end], SamplingParams(max_tokens=1)) for end in ends]
    finish(sampler(policy), rows)
    assert passes == [35, 2 * 5]
    assert [row.cached for row in rows] == [0, 30, 30]
    # A cache that holds nothing of it: the others wait once, and not for each other.
    passes.clear()
    finish(sampler(policy, 1), [Row(row.prompt, row.params) for row in rows])
    assert passes == [35, 2 * 35]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "attention", "dtype"), families.IN_ONE_TYPE)
def test_running_requests_read_what_they_share_from_one_copy(
    family: str, attention: str, dtype: torch.dtype
) -> None:
    """Two groups with a common beginning. A request that began alone shares its prompt when others join."""
    policy = families.precise(family, attention, dtype)
    draw = random.Random(7)
    one = sampler(policy)
    beginning, ends = tokens(draw, 50), [tokens(draw, 14), tokens(draw, 20)]
    first = Row([*beginning, *ends[0]], SamplingParams(max_tokens=30, seed=0))
    one.add([first])
    one.step()
    assert one.cache.offset(0) == 0
    joining = [
        Row([*beginning, *ends[n % 2]], SamplingParams(max_tokens=5 + 7 * n, seed=n))
        for n in range(1, 6)
    ]
    finish(one, joining)
    assert one.prefixes.match(first.prompt) == len(first.prompt)
    check(policy, [first, *joining], families.EXACT[dtype])


def test_shared_tokens_are_not_copied_into_the_rows() -> None:
    policy = families.policy("qwen3")
    draw = random.Random(8)
    one = sampler(policy)
    prompt = tokens(draw, 70)
    first = Row(prompt, SamplingParams(max_tokens=9))
    one.add([first])
    one.step()
    one.add([Row(prompt, SamplingParams(max_tokens=9)), Row(tokens(draw, 7), first.params)])
    assert [one.cache.offset(row) for row in range(3)] == [70, 0, 70]
    keys, _ = one.prefixes.read(prompt)[0].block[:2]
    assert one.cache.read(0, 0, 70)[0].equal(keys)
    # A row that ends leaves its place to the last one, with what that refers to.
    one.drop(first)
    assert [one.cache.offset(row) for row in range(2)] == [70, 0]
    while one.rows:
        one.step()


@pytest.mark.parametrize("cancelled", [True, False])
def test_ended_requests_keep_nothing_that_the_cache_has_removed(cancelled: bool) -> None:
    policy = families.policy("qwen3")
    draw = random.Random(9)
    one = sampler(policy)
    prompt = tokens(draw, 70)
    rows = [Row(prompt, SamplingParams(max_tokens=4)) for _ in range(2)]
    one.add(rows)
    one.step()
    assert [one.cache.offset(row) for row in range(2)] == [70, 70]
    shared = weakref.ref(one.prefixes.read(prompt)[0].block[0])
    if cancelled:
        for row in rows:
            one.drop(row)
    while one.rows:
        one.step()
    assert shared() is not None  # the cache has it
    one.prefixes.clear()
    assert shared() is None


def test_released_memory_is_computed_anew_with_new_weights() -> None:
    policy = families.policy("llama")
    draw = random.Random(3)
    one = sampler(policy)
    first = Row(tokens(draw, 30), SamplingParams(max_tokens=5, seed=1))
    finish(one, [first])
    assert one.prefixes.bytes > 0
    one.release()
    assert one.prefixes.bytes == 0
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.mul_(1.5)
    second = Row([*first.prompt, *first.token_ids], first.params)
    finish(one, [second])
    assert second.cached == 0
    check(policy, [second])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "limit"), [("qwen3", 3_000), ("gpt2", 20_000), ("phi3", PLENTY)]
)
def test_soak(family: str, limit: int) -> None:
    """Random requests, turns, cancellations, new weights and evictions: each answer stays the right one."""
    policy = families.policy(family)
    draw = random.Random(limit)
    one = sampler(policy, limit, max_batch=4)
    ended: list[Row] = []
    for number in range(80):
        match draw.choice(("add", "add", "step", "step", "step", "turn", "drop", "update")):
            case "add" if one.room:
                prompt = tokens(draw, draw.randrange(1, 40))
                count = draw.randint(1, one.room)
                params = SamplingParams(max_tokens=draw.randrange(1, 6))
                seeds = [replace(params, seed=number * 10 + n) for n in range(count)]
                ended += one.add([Row(prompt, p) for p in seeds])
            case "turn" if one.room and ended:
                last = draw.choice(ended)
                prompt = [*last.prompt, *last.token_ids, *tokens(draw, draw.randrange(4))][:110]
                ended += one.add([Row(prompt, replace(last.params, seed=number))])
            case "drop" if one.rows:
                one.drop(draw.choice(one.rows))
            case "update" if not one.rows:
                check(policy, ended)
                ended.clear()
                one.release()
                with torch.no_grad():
                    next(policy.model.parameters()).mul_(1.01)
            case _:
                ended += one.step()
        assert one.prefixes.bytes <= limit
    while one.rows:
        ended += one.step()
    assert ended
    check(policy, ended)
