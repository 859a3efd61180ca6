"""Defines a game without boxes on which `algorithms.py` compares algorithms: the agent must remember
the previous sign.

In each of three turns the agent sees one of four signs and replies with two of eight answers. The first
answer must match the present sign, the second the previous sign (in the first turn, the present one). Each
right answer earns 1/6, so an episode earns 0 to 1, turn by turn. A random policy earns 1/14, because it draws
from 14 tokens. The signs do not depend on the replies.

Only boxes are missing. Replies come from air's sampler or, if a teacher plays, from air's inference server.
Episodes are verifiers' traces, in which rewards are stored as air's environment stores them.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import torch
import verifiers.v1 as vf

from air.train.loop.rollout import Group, Rollout
from air.train.model.policy import Policy
from air.train.serving.sampler import Row, Sampler, SamplingParams

TURNS, REPLY_TOKENS, CONTEXT = 3, 2, 64
SIGNS = tuple(f"sign{n}" for n in range(4))
ANSWERS = tuple(f"answer{n}" for n in range(8))
WORDS = ("<pad>", "<end>", *SIGNS, *ANSWERS)
WORTH = 1 / (TURNS * REPLY_TOKENS)
"""The reward of one right answer."""
EVERY_GAME = tuple(itertools.product(range(len(SIGNS)), repeat=TURNS))
"""All possible games: all sequences of signs."""

_AT_ONCE = 64
"""The largest number of requests that are open at the same time."""

Game = Sequence[int]
"""One game: the number of the sign in each turn."""


def right_answers(game: Game, turn: int) -> tuple[int, int]:
    """Returns the token ids of the two right answers in a turn. The first and the second answer use different
    tokens."""
    first = WORDS.index(f"answer{(3 * game[turn] + 1) % 8}")
    second = WORDS.index(f"answer{(5 * game[max(0, turn - 1)] + 2) % 8}")
    return first, second


def build(folder: Path, seed: int) -> Path:
    """Writes an untrained policy of about 50,000 weights, whose tokens are the game's words; returns
    `folder`."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import (
        GenerationConfig,
        PreTrainedTokenizerFast,
        Qwen3Config,
        Qwen3ForCausalLM,
    )

    words = Tokenizer(models.WordLevel({w: n for n, w in enumerate(WORDS)}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<end>", model_max_length=CONTEXT
    )
    config = Qwen3Config(
        vocab_size=len(WORDS),
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=16,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        eos_token_id=1,
        pad_token_id=0,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=1, pad_token_id=0)
    Policy(model, tokenizer, str(folder)).save(folder)
    return folder


Replies = Callable[[Sequence[list[int]], Sequence[SamplingParams]], Sequence[Row]]
"""A function that samples one reply to each prompt, with the sampling parameters of the same index. Returns
the requests with their replies."""


def of_policy(policy: Policy) -> Replies:
    """Returns a function that samples replies from `policy` in this process."""

    def replies(prompts: Sequence[list[int]], params: Sequence[SamplingParams]) -> Sequence[Row]:
        sampler = Sampler(policy, max_batch=len(prompts), max_model_len=CONTEXT)
        rows = [Row(list(one), of) for one, of in zip(prompts, params, strict=True)]
        sampler.add(rows)
        while sampler.rows:
            sampler.step()
        return rows

    return replies


def of_server(url: str) -> Replies:
    """Returns a function that samples replies from the model on the inference server at `url`, which ends
    with `/v1`. There, unlike in `of_policy`, the token `<end>` ends a reply."""
    path = f"{url.removesuffix('/v1')}/inference/v1/generate"

    def reply(http: httpx.Client, prompt: list[int], params: SamplingParams) -> Row:
        fields = {"temperature": params.temperature, "max_tokens": params.max_tokens}
        body = {"token_ids": prompt, "sampling_params": {**fields, "seed": params.seed}}
        answer = http.post(path, json=body).raise_for_status()
        choice = answer.json()["choices"][0]
        row = Row(list(prompt), params, choice["token_ids"])
        row.logprobs = [entry["logprob"] for entry in choice["logprobs"]["content"]]
        return row

    def replies(prompts: Sequence[list[int]], params: Sequence[SamplingParams]) -> Sequence[Row]:
        with httpx.Client(timeout=600) as http, ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(lambda one: reply(http, *one), zip(prompts, params, strict=True)))

    return replies


def play(
    policy: Policy | Replies,
    games: Sequence[Game],
    group_size: int,
    seed: str,
    *,
    greedy: bool = False,
) -> list[Group]:
    """Plays each game `group_size` times at temperature 1 and, if `greedy`, once more at temperature 0. The
    player is a policy, or a function that samples replies. Equal players, games and seeds give equal
    episodes."""
    rng = random.Random(seed)
    size = group_size + greedy
    seats = [(game, n == group_size) for game in games for n in range(size)]
    sampled = of_policy(policy) if isinstance(policy, Policy) else policy
    params = [
        SamplingParams(0.0 if at_zero else 1.0, max_tokens=REPLY_TOKENS, seed=rng.randrange(2**32))
        for _, at_zero in seats
    ]
    tokens: list[list[int]] = [[] for _ in seats]
    replies: list[Sequence[Row]] = []
    for turn in range(TURNS):
        for (game, _), so_far in zip(seats, tokens, strict=True):
            so_far.append(WORDS.index(SIGNS[game[turn]]))
        rows = sampled(tokens, params)
        for so_far, row in zip(tokens, rows, strict=True):
            so_far += row.token_ids
        replies.append(rows)
    rollouts = [
        _rollout(game, [rows[seat] for rows in replies]) for seat, (game, _) in enumerate(seats)
    ]
    groups = [rollouts[start : start + size] for start in range(0, len(rollouts), size)]
    return [Group(one[:group_size], one[group_size] if greedy else None) for one in groups]


def reward(groups: Sequence[Group]) -> float:
    """Returns the mean reward of the episodes, not counting greedy ones."""
    rewards = [rollout.reward for group in groups for rollout in group.rollouts]
    return sum(rewards) / len(rewards)


def _rollout(game: Game, replies: Sequence[Row]) -> Rollout:
    nodes: list[dict[str, Any]] = []
    payments = []
    for turn, row in enumerate(replies):
        earned = WORTH * sum(
            a == b for a, b in zip(row.token_ids, right_answers(game, turn), strict=False)
        )
        sign = SIGNS[game[turn]]
        nodes.append(_node(len(nodes), "user", sign, [WORDS.index(sign)], None))
        text = " ".join(WORDS[token] for token in row.token_ids)
        nodes.append(_node(len(nodes), "assistant", text, row.token_ids, row.logprobs))
        payments.append({"nodes": len(nodes), "ends": True, "terms": {"answers": earned}})
    total = sum(payment["terms"]["answers"] for payment in payments)
    trace = vf.WireTrace.model_validate(
        {
            "task": {"type": "Task", "data": {"idx": 0, "prompt": "signs"}},
            "agent": {"config": {"model": "policy"}},
            "nodes": nodes,
            "rewards": {"answers": {"score": total}},
            "info": {"air": {"paid": payments}},
            "is_completed": True,
            "ok": True,
            "stop_condition": "agent_completed",
        }
    )
    return Rollout("game", " ".join(map(str, game)), [trace])


def _node(
    number: int, role: str, text: str, tokens: Sequence[int], logprobs: Sequence[float] | None
) -> dict[str, Any]:
    sampled = logprobs is not None
    return {
        "parent": number - 1 if number else None,
        "message": {"role": role, "content": text},
        "sampled": sampled,
        "token_ids": list(tokens),
        "mask": [sampled] * len(tokens),
        "logprobs": list(logprobs or ()),
    }
