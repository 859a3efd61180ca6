from __future__ import annotations

import math
import random

import pytest
import torch

from air.train.model.determinism import deterministic
from air.train.model.logprobs import token_logprobs
from air.train.model.policy import Policy
from air.train.serving.sampler import Row, Sampler, SamplingParams, sample
from tests.unit.train.conftest import generate


def prompts(policy: Policy, count: int) -> list[list[int]]:
    draw = random.Random(5)
    vocab = len(policy.tokenizer)
    return [[draw.randrange(vocab) for _ in range(draw.randrange(3, 60))] for _ in range(count)]


def test_logprobs_are_the_trainers(small: Policy) -> None:
    given = prompts(small, 12)
    params = [
        SamplingParams(temperature=0.5 + 0.1 * n, max_tokens=10 + 3 * n, seed=n) for n in range(12)
    ]
    # Fewer rows than requests, of unlike lengths: rows end, move and are filled again.
    for prompt, p, reply in zip(
        given, params, generate(small, given, params, max_batch=5), strict=True
    ):
        assert reply.finish_reason == "length"
        assert len(reply.token_ids) == p.max_tokens
        ids = torch.tensor([prompt + reply.token_ids])
        with torch.no_grad():
            ours = token_logprobs(small.model, ids, p.temperature)[0, len(prompt) :]
        assert torch.allclose(ours, torch.tensor(reply.logprobs), atol=1e-4)


def test_a_seed_draws_the_same_in_any_company(small: Policy) -> None:
    given = prompts(small, 8)
    params = [SamplingParams(max_tokens=20, seed=n) for n in range(8)]
    together = generate(small, given, params)
    alone = [generate(small, [g], p)[0] for g, p in zip(given, params, strict=True)]
    assert [r.token_ids for r in together] == [r.token_ids for r in alone]


def test_greedy_takes_the_likeliest(small: Policy) -> None:
    prompt = prompts(small, 1)[0]
    [reply] = generate(small, [prompt], SamplingParams(temperature=0, max_tokens=5))
    with torch.no_grad():
        logits = small.model(input_ids=torch.tensor([prompt + reply.token_ids])).logits[0]
    assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == reply.token_ids


def test_stop_token_ends_and_is_kept(small: Policy) -> None:
    prompt = prompts(small, 1)[0]
    [free] = generate(small, [prompt], SamplingParams(max_tokens=30, seed=3))
    stop = free.token_ids[7]
    params = SamplingParams(max_tokens=30, seed=3, stop_token_ids=frozenset([stop]))
    [ended] = generate(small, [prompt], params)
    assert ended.finish_reason == "stop"
    assert ended.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]


def test_the_context_ends_a_reply(small: Policy) -> None:
    prompt = prompts(small, 1)[0]
    [reply] = generate(small, [prompt], SamplingParams(seed=0), max_model_len=len(prompt) + 4)
    assert (len(reply.token_ids), reply.finish_reason) == (4, "length")
    with pytest.raises(ValueError, match="a prompt must have 1 to"):
        generate(small, [prompt], SamplingParams(), max_model_len=len(prompt))


def test_dropped_row_leaves_the_others_alone(small: Policy) -> None:
    given = prompts(small, 3)
    rows = [Row(p, SamplingParams(max_tokens=12, seed=n)) for n, p in enumerate(given)]
    sampler = Sampler(small, max_batch=3, max_model_len=200)
    sampler.add(rows)
    sampler.step()
    sampler.drop(rows[0])
    while sampler.rows:
        sampler.step()
    expected = generate(small, given, [row.params for row in rows])
    assert [row.token_ids for row in rows[1:]] == [reply.token_ids for reply in expected[1:]]
    assert len(rows[0].token_ids) == 2


def test_drawing_by_hand() -> None:
    # Probabilities 0.5, 0.3, 0.2: cumulative 0.5, 0.8, 1.
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log()
    drawn = [sample(logits, [SamplingParams()], [u])[0][0] for u in (0.0, 0.49, 0.51, 0.79, 0.99)]
    assert drawn == [0, 0, 1, 1, 2]
    # Temperature 0.5 squares: 25, 9, 4 of 38.
    [token], [logprob] = sample(logits, [SamplingParams(temperature=0.5)], [0.7])
    assert token == 1
    assert logprob == pytest.approx(math.log(9 / 38), abs=1e-6)


@pytest.mark.parametrize(
    "params",
    [SamplingParams(top_k=2), SamplingParams(top_p=0.7), SamplingParams(top_k=2, top_p=0.9)],
)
def test_cut_distribution_by_hand(params: SamplingParams) -> None:
    # Out of order on purpose; 0.5 and 0.3 stay, renormalised to 5/8 and 3/8.
    logits = torch.tensor([[0.2, 0.5, 0.3]]).log()
    [token], [logprob] = sample(logits, [params], [0.99])
    assert token == 2
    assert logprob == pytest.approx(math.log(3 / 8), abs=1e-6)


def test_sampled_frequencies_follow_the_probabilities() -> None:
    draw = random.Random(0)
    count = 4000
    logits = torch.tensor([[0.7, 0.2, 0.1]]).log().expand(count, 3)
    tokens, _ = sample(logits, [SamplingParams()] * count, [draw.random() for _ in range(count)])
    # Four standard deviations of the largest share.
    assert tokens.count(0) / count == pytest.approx(0.7, abs=4 * math.sqrt(0.21 / count))


def test_deterministic_algorithms_draw_the_same() -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(1))
    params = [SamplingParams(top_p=0.9), SamplingParams(top_k=5), SamplingParams()]
    before = sample(logits, params, [0.1, 0.5, 0.9])
    with deterministic(True):
        assert sample(logits, params, [0.1, 0.5, 0.9]) == before
