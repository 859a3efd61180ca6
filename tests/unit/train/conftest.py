"""A small real policy: built once untrained, and once warm-started on conversations."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from air.train.config.model_options import (
    AdamWConfig,
    LinearSchedulerConfig,
    SFTConfig,
    SFTDataConfig,
)
from air.train.model import policy
from air.train.model.policy import Policy
from air.train.model.sft import train_sft
from air.train.serving.sampler import Completion, Row, Sampler, SamplingParams


def conversation(number: int) -> list[dict[str, Any]]:
    """A conversation with two replies that a small model can learn."""
    draw = random.Random(number)
    depth = draw.choice("123")
    return [
        {"role": "system", "content": "You are a researcher."},
        {"role": "user", "content": f"Use depth {depth}."},
        {"role": "assistant", "content": f"```run\ntrain --depth {depth}\n```"},
        {"role": "user", "content": f"score {draw.random():.2f}"},
        {"role": "assistant", "content": "validate"},
    ]


def generate(
    policy: Policy,
    prompts: Sequence[list[int]],
    params: SamplingParams | Sequence[SamplingParams],
    *,
    max_batch: int = 32,
    max_model_len: int | None = None,
) -> list[Completion]:
    """Samples one reply to each prompt, at most `max_batch` at once."""
    each = [params] * len(prompts) if isinstance(params, SamplingParams) else params
    rows = [Row(prompt, one) for prompt, one in zip(prompts, each, strict=True)]
    limit = max_model_len or policy.max_length
    sampler = Sampler(policy, max_batch=max_batch, max_model_len=limit)
    waiting = list(rows)
    while waiting or sampler.rows:
        joining, waiting = waiting[: sampler.room], waiting[sampler.room :]
        if joining:
            sampler.add(joining)
        sampler.step()
    return [row.completion() for row in rows]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Small matrices gain nothing from threads, and on a busy machine lose tenfold by waiting."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an untrained policy."""
    texts = [m["content"] for n in range(100) for m in conversation(n)]
    target = tmp_path_factory.mktemp("policy") / "small"
    return policy.build(target, texts, hidden=64, layers=2, vocab=400, max_length=512)


@pytest.fixture
def small(folder: Path) -> Policy:
    """A fresh untrained policy, free to be changed."""
    return policy.load(folder)


@pytest.fixture(scope="session")
def warm_metrics() -> list[dict[str, float]]:
    """What `warm` reported, step by step."""
    return []


@pytest.fixture(scope="session")
def warm(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, warm_metrics: list[dict[str, float]]
) -> Policy:
    """A policy that has learned the conversations, loaded from its own folder; not to be changed."""
    learner = policy.load(folder)
    config = SFTConfig(
        max_steps=60,
        data=SFTDataConfig(batch_size=8, seq_len=100),
        optim=AdamWConfig(lr=1e-2),
        scheduler=LinearSchedulerConfig(warmup_steps=5, decay_steps=50, min_lr=1e-3),
    )
    train_sft(learner, [conversation(n) for n in range(100)], config, warm_metrics.append)
    target = tmp_path_factory.mktemp("policy") / "warm"
    learner.save(target)
    return policy.load(target)
