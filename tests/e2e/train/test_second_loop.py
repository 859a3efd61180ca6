"""Many episodes at once in a second event loop of one process, as after a second call of `air.train.run`."""

from __future__ import annotations

import asyncio
from pathlib import Path

from air.train.evaluation.play import evaluate, served
from air.train.evaluation.settings import research_env
from air.train.loop.rollout import Rollout, with_defaults
from air.train.model import policy as policies

EPISODES = 8


def test_episodes_of_a_second_event_loop_end_well(small: Path) -> None:
    policy = policies.load(small)
    env = research_env(["air.testing:letters"], runtime="subprocess", max_turns=1)
    taskset = env.taskset.model_copy(update={"examples_per_task": EPISODES})
    env = env.model_copy(update={"taskset": taskset})

    async def play() -> list[Rollout]:
        async with served(policy, temperature=1.0, max_tokens=4, max_model_len=1024) as ctx:
            config = with_defaults(env, policy, max_context_tokens=1024)
            return await evaluate(config, ctx, 1)  # type: ignore[arg-type]

    for _ in range(2):
        rollouts = asyncio.run(play())
        assert [rollout.error for rollout in rollouts] == [""] * EPISODES
