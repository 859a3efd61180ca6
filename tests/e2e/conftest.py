"""What end-to-end tests share: scripted and real small models against the real environment."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import verifiers.v1 as vf

from air.env.config import AirHarnessConfig, AirTasksetConfig, ResearchEnvConfig
from air.testing import Script, ScriptedServer

TRY = 'Try it.\n```bash\necho "method={} level={}" > config\npython3 solve.py\n{}\n```'


def attempt(method: int, level: int, ending: str = "validate") -> str:
    """A reply that runs a shipped task's solver with these choices."""
    return TRY.format(method, level, ending)


@pytest.fixture(params=["subprocess", pytest.param("docker", marks=pytest.mark.docker)])
def runtime(request: pytest.FixtureRequest) -> str:
    """Both kinds of box."""
    return str(request.param)


def research(
    tasks: Sequence[str], runtime: str, *, harness: dict[str, Any] | None = None, **settings: Any
) -> ResearchEnvConfig:
    """An environment's config."""
    turns = settings.pop("max_turns", 4)
    agent = vf.AgentConfig.model_validate(
        {
            "harness": AirHarnessConfig(**(harness or {})).model_dump(),
            "runtime": {"type": runtime},
            "max_turns": turns,
        }
    )
    return ResearchEnvConfig(taskset=AirTasksetConfig(tasks=list(tasks)), agent=agent, **settings)


@asynccontextmanager
async def played_by(script: Script, config: ResearchEnvConfig) -> AsyncIterator[Any]:
    """`play(n)`: plays the first task `n` times with a scripted model; gives verifiers' episodes."""
    env = vf.load_environment(config)
    with ScriptedServer(script) as server:
        client = vf.EvalClientConfig(base_url=server.url, api_key_var="AIR_TEST_KEY")
        ctx = vf.ModelContext(model="scripted", client=client)
        async with env.serving():
            task = next(iter(env.taskset))

            async def play() -> Any:
                return await env.run_slot(env.slots(task)[0], ctx)

            yield play


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of the test run's own."""
    import os

    folder = tmp_path_factory.mktemp("cache")
    os.environ["AIR_CACHE"] = str(folder)
    return folder
