"""The episodes of an evaluation."""

from __future__ import annotations

import pytest

from air.train.evaluation.play import endpoint, evaluate
from air.train.evaluation.settings import research_env


async def test_a_prompt_is_not_sampled_twice_with_one_seed() -> None:
    """The second episode would be a copy of the first, and would count as a further one."""
    game = "game:sokoban4x5"
    env = research_env([game], runtime="subprocess", max_turns=1)
    taskset = env.taskset.model_copy(update={"examples_per_task": 2})
    env = env.model_copy(update={"taskset": taskset})
    ctx = endpoint(
        "http://127.0.0.1:9/v1", "none", api_key_var="NONE", temperature=1.0, max_tokens=1
    )
    for episodes in (2, {game: 3}):
        with pytest.raises(ValueError, match="a sampling seed would be used twice"):
            await evaluate(env, ctx, episodes, seed="a")
