"""Whole training steps through a real vLLM process, token by token, and a server that hangs.
`make test-vllm`."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from air.train.config.model_options import AdamWConfig
from air.train.config.run_config import SourceConfig
from air.train.loop.rollout import Group, Source, context, play_group, serving
from air.train.loop.trainer import Trainer
from air.train.model import policy as policies
from air.train.model.logprobs import token_logprobs
from air.train.model.policy import Policy
from air.train.serving.vllm import locate
from air.train.serving.vllm.locate import Launch
from air.train.serving.vllm.server import VllmServer
from air.train.tree.sample import Sample
from tests.e2e.conftest import research
from tests.e2e.train.test_train import check_tokens
from tests.vllm.test_runs import TOLERANCE, api_server

pytestmark = pytest.mark.vllm

TEMPERATURE = 0.8


@pytest.fixture(scope="module")
def policy(small: Path) -> Policy:
    """Trained by these tests."""
    return policies.load(small)


@pytest.fixture
def server(policy: Policy, tmp_path: Path) -> Iterator[VllmServer]:
    installed = locate.find()
    assert installed is not None
    launch = Launch(installed, None, policy.name, 896, 16, torch.get_num_threads())
    running = VllmServer(policy, launch, folder=tmp_path, unhealthy_seconds=10.0)
    running.start()
    yield running
    running.stop()


async def played(source: Source, policy: Policy, server: VllmServer) -> Group:
    """Groups until one has something to learn."""
    ctx = context(policy, server.url, temperature=TEMPERATURE, max_tokens=96)
    for _, task in zip(range(6), itertools.cycle(source.tasks), strict=False):
        group = await play_group(source, task, ctx)
        assert all(r.ok for r in group.rollouts), [r.error for r in group.rollouts]
        if group.has_spread:
            return group
    raise AssertionError("six groups without spread in reward")


def differences(policy: Policy, group: Group) -> list[float]:
    """Per sampled token, how far vLLM's log-probability is from the trainer's."""
    found = []
    for rollout in group.rollouts:
        branch, theirs = check_tokens(policy, rollout.trace)
        with torch.no_grad():
            ids = torch.tensor([branch.token_ids])
            ours = token_logprobs(policy.model, ids, TEMPERATURE)[0].tolist()
        drawn = [x for x, sampled in zip(ours, branch.sampled_mask, strict=True) if sampled]
        found += [abs(a - b) for a, b in zip(drawn, theirs, strict=True)]
    return found


def samples(group: Group) -> list[Sample]:
    """One an episode: reward minus the group's mean."""
    rewards = [r.reward for r in group.rollouts]
    mean = sum(rewards) / len(rewards)
    return [
        Sample(b.token_ids, b.sampled_mask, b.logprobs, reward - mean, TEMPERATURE)
        for rollout, reward in zip(group.rollouts, rewards, strict=True)
        for b in rollout.trace.branches
    ]


async def test_steps_are_token_exact_and_stale_weights_show(
    policy: Policy, server: VllmServer
) -> None:
    env = research(["titanic"], "subprocess", harness={"tokenizer": policy.name}, max_turns=3)
    config = SourceConfig.model_construct(name="s", ratio=1.0, group_size=8, env=env)
    trainer = Trainer(policy, AdamWConfig(lr=1e-3))
    async with serving([config], 8) as (source,):
        group = await played(source, policy, server)
        assert max(differences(policy, group)) < TOLERANCE
        for version in (1, 2):
            learnt = trainer.step(samples(group))
            assert learnt["updated"] == 1
            assert learnt["grad_norm"] > 0
            assert learnt["mismatch_kl"] < 1e-6
            stale = await played(source, policy, server)
            assert max(differences(policy, stale)) > 10 * TOLERANCE
            assert server.update_weights() == version
            group = await played(source, policy, server)
            fresh = differences(policy, group)
            assert max(fresh) < TOLERANCE
            print(f"version {version}: {len(fresh)} tokens, fresh {max(fresh):.1e}", end=", ")
            print(f"stale {max(differences(policy, stale)):.1e}")


def test_a_server_that_hangs_is_started_again_with_the_newest_weights(
    policy: Policy, server: VllmServer
) -> None:
    with torch.no_grad():
        for weights in policy.model.parameters():
            weights.mul_(1.05)
    os.kill(api_server(server.log.parent), signal.SIGSTOP)
    before = server.version
    assert server.update_weights() == before + 1  # waits for the new process
    ours, theirs = reply(policy, server)
    assert theirs == pytest.approx(ours, abs=TOLERANCE)


def reply(policy: Policy, server: VllmServer) -> tuple[list[float], list[float]]:
    """Log-probabilities of one reply: the trainer's and vLLM's."""
    import httpx

    prompt = list(range(5, 25))
    sampling = {"max_tokens": 30, "logprobs": 1, "temperature": 1.0}
    body = {"model": policy.name, "token_ids": prompt, "sampling_params": sampling}
    answer: Any = httpx.post(f"{server.url}/inference/v1/generate", json=body, timeout=60)
    (choice,) = answer.raise_for_status().json()["choices"]
    ids = torch.tensor([[*prompt, *choice["token_ids"]]])
    with torch.no_grad():
        ours = token_logprobs(policy.model, ids)[0, len(prompt) :].tolist()
    return ours, [entry["logprob"] for entry in choice["logprobs"]["content"]]
