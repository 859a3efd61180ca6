"""The environment names a task that its run does not have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from air.env.config import ResearchEnvConfig
from air.env.environment import ResearchEnv
from air.errors import MissingError
from air.trajectories import Recorder

LETTERS = "air.testing:letters"


async def test_a_world_that_the_run_does_not_have_is_named(tmp_path: Path) -> None:
    taskset: Any = {"id": "air", "tasks": [LETTERS]}
    env = ResearchEnv(ResearchEnvConfig.model_validate({"taskset": taskset}))
    text = f"the run has no world 'titanic' — its worlds: {LETTERS}"
    async with env.serving():
        with pytest.raises(MissingError) as lent:
            await env.lend_world("titanic").__aenter__()
        async with env.lend_world(LETTERS) as world:
            with (
                Recorder(tmp_path, "one") as recorder,
                pytest.raises(MissingError) as played,
            ):
                env.world_episode("titanic", world, recorder)
        with pytest.raises(MissingError) as research:
            env.spec(LETTERS)
    assert [str(lent.value), str(played.value)] == [text, text]
    assert str(research.value) == (
        f"the run has no research task '{LETTERS}' — its research tasks: none"
    )
