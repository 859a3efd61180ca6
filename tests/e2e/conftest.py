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
from air.train.config.embedded_config import EmbeddedConfig
from air.train.config.model_options import SFTConfig
from air.train.model import policy as policies
from air.train.model.sft import train_sft
from tests import once
from tests.once import shared

SYSTEM = (
    "Reply with a short thought and exactly one ```bash block. "
    "Its last line may be `validate` (score the artefact) or `submit` (score it and finish)."
)
TRY = 'Try it.\n```bash\necho "method={} level={}" > config\npython3 solve.py\n{}\n```'


def attempt(method: int, level: int, ending: str = "validate") -> str:
    """A reply that runs a shipped task's solver with these choices."""
    return TRY.format(method, level, ending)


@pytest.fixture(params=["subprocess", pytest.param("docker", marks=pytest.mark.docker)])
def runtime(request: pytest.FixtureRequest) -> str:
    """Both kinds of box."""
    return str(request.param)


containers_in_full = pytest.mark.parametrize(
    "runtime", ["subprocess", pytest.param("docker", marks=[pytest.mark.docker, pytest.mark.full])]
)
"""Both kinds of box, containers only by `make test-all`: for what is the same code in both, and whose parts
that concern containers another test plays in these."""


def research(
    tasks: Sequence[str],
    runtime: str,
    *,
    harness: dict[str, Any] | None = None,
    task_roots: Sequence[Path] = (),
    **settings: Any,
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
    taskset = AirTasksetConfig(tasks=list(tasks), task_roots=list(task_roots))
    return ResearchEnvConfig(taskset=taskset, agent=agent, **settings)


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

    folder = once.cache(tmp_path_factory)
    os.environ["AIR_CACHE"] = str(folder)
    return folder


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy of 0.1 M weights that can say two things: try something, or submit it."""
    talks = [talk(m, level) for m in range(1, 5) for level in range(1, 5)]
    return shared(tmp_path_factory, "small", lambda folder: warm(folder, talks)) / "warm"


@pytest.fixture(scope="session")
def trained(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which `rl` trained the run `outputs/r` for two steps, in process boxes; see `train`."""
    return shared(tmp_path_factory, "trained", lambda folder: train(folder, small, "subprocess"))


def train(folder: Path, model: Path, runtime: str) -> None:
    """Trains the run `outputs/r` in this folder, and writes what it printed into the file `said`.

    In a process of its own: renderers keeps a lock for the first event loop that it meets."""
    from tests.e2e.commands.test_commands import command

    ran = command("rl", "@", run_toml(folder, model, runtime), cwd=folder)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (folder / "said").write_text(ran.stdout)


def warm(folder: Path, talks: Sequence[list[dict[str, str]]]) -> Path:
    """Builds a policy of 0.1 M weights and warm-starts it on these conversations."""

    texts = [message["content"] for one in talks for message in one]
    policies.build(folder / "base", texts, hidden=64, layers=2, heads=2, kv_heads=1, vocab=512)
    EmbeddedConfig().set_threads()
    policy = policies.load(folder / "base")
    config = SFTConfig.model_validate(
        {
            "max_steps": 90,
            "data": {"batch_size": 2, "seq_len": 640},
            "optim": {"lr": 1e-2, "weight_decay": 0.0},
        }
    )
    train_sft(policy, talks, config)
    policy.save(folder / "warm")
    return folder / "warm"


def talk(method: int, level: int) -> list[dict[str, str]]:
    from air import tasks
    from air.worlds.research.observations import describe

    return [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": describe(tasks.load("titanic"))},
        {"role": "assistant", "content": attempt(method, level)},
        {
            "role": "user",
            "content": f"[accuracy] 0.7{level}12 (best 0.7{method}34)\n[3 turns left]",
        },
        {"role": "assistant", "content": attempt(level, method, "submit")},
    ]


def run_toml(folder: Path, model: Path, runtime: str, **more: Any) -> Path:
    settings = {"max_steps": 2, "batch_size": 8, **more}
    path = folder / "run.toml"
    path.write_text(
        f"""
max_steps = {settings["max_steps"]}
seq_len = 896
output_dir = "{folder / "outputs"}"
[run]
name = "r"
[model]
name = "{model}"
[ckpt]
interval = 1
[trainer.optim]
lr = 1e-3
[orchestrator]
batch_size = {settings["batch_size"]}
group_size = 4
[orchestrator.train.sampling]
max_completion_tokens = 96
[[orchestrator.train.source]]
[orchestrator.train.source.env]
format_penalty = 0.25
[orchestrator.train.source.env.taskset]
id = "air"
tasks = ["titanic"]
[orchestrator.train.source.env.agent]
max_turns = 3
[orchestrator.train.source.env.agent.runtime]
type = "{runtime}"
[orchestrator.train.source.env.agent.harness]
id = "air"
max_observation_tokens = 64
"""
    )
    return path
