"""What makes a run repeatable: seeded generators, deterministic algorithms, and replies sampled alone."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from air.errors import ConfigError
from air.train.config import overrides
from air.train.config.run_config import RunConfig
from air.train.model.determinism import deterministic, seed_generators
from air.train.model.policy import Policy
from air.train.serving.sampler import Sampler, SamplingParams
from air.train.serving.scheduler import Scheduler


def drawn() -> list[float]:
    return [random.random(), float(np.random.rand()), float(torch.rand(()))]


def test_an_update_draws_by_its_seed_and_step() -> None:
    seed_generators(1, 2)
    first = drawn()
    for other in ((1, 3), (2, 2)):
        seed_generators(*other)
        assert not set(drawn()) & set(first)
    seed_generators(1, 2)
    assert drawn() == first


def test_torch_is_left_as_it_was() -> None:
    with deterministic(False):
        assert not torch.are_deterministic_algorithms_enabled()
    with deterministic(True):
        assert torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_reply_knows_the_weights_that_sampled_it(small: Policy) -> None:
    scheduler = Scheduler(Sampler(small, max_batch=8, max_model_len=256))
    scheduler.start()
    params = SamplingParams(max_tokens=5, seed=1)
    try:
        replies = []
        for _ in range(3):
            replies.append(scheduler.submit([5, 6, 7], params).result(60).completion)
            with scheduler.exclusive(), torch.no_grad():
                next(small.model.parameters()).mul_(1.1)
                scheduler.next_version()
    finally:
        scheduler.stop()
    # The weights have version 3 now; replies before the last two versions are forgotten.
    assert [scheduler.version_of(r.token_ids, r.logprobs) for r in replies] == [None, None, 2]
    assert scheduler.version_of(replies[2].token_ids, [0.0] * 5) is None


def test_a_reply_sampled_alone_does_not_depend_on_the_others(small: Policy) -> None:
    sampler = Sampler(small, max_batch=8, max_model_len=256)
    scheduler = Scheduler(sampler, alone=True)
    scheduler.start()
    prompts = [[5] * 7, [6, 7] * 30, [8, 9, 10]]
    params = [SamplingParams(max_tokens=20, seed=n) for n in range(3)]
    try:
        apart = [scheduler.submit(*one).result(60) for one in zip(prompts, params, strict=True)]
        waiting = [scheduler.submit(*one) for one in zip(prompts, params, strict=True)]
        together = [future.result(60) for future in reversed(waiting)][::-1]
    finally:
        scheduler.stop()
    assert [one.completion for one in together] == [one.completion for one in apart]


@pytest.mark.parametrize(
    ("more", "steps", "words"),
    [
        ({"inference": "vllm"}, 0, r"deterministic needs .*transformers"),
        ({}, 1, r"deterministic needs .*max_off_policy_steps = 0"),
        ({"duration_weight_cap": 4.0}, 0, r"deterministic .*combined .*duration_weight_cap"),
    ],
)
def test_what_depends_on_timing_is_refused(more: dict[str, str], steps: int, words: str) -> None:
    sources = overrides.MergedSettings()
    settings = {
        "max_steps": 1,
        "orchestrator": {"max_off_policy_steps": steps, "train": {"source": [{}]}},
        "embedded": {"deterministic": True, **more},
    }
    overrides.put(sources, settings, "x")
    with pytest.raises(ConfigError, match=words):
        overrides.build(RunConfig, sources)
