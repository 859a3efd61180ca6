"""Plays groups of episodes: sources, groups, rollouts, and the way to the inference server."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import verifiers.v1 as vf

from air.aio import together
from air.env.config import AirHarnessConfig, ResearchEnvConfig
from air.errors import ConfigError, boundary
from air.train.config.run_config import SourceConfig
from air.train.model.policy import Policy, default_renderer


@dataclass
class Rollout:
    """One episode as the engine sees it."""

    source: str
    task: str
    """The research task's id."""
    traces: list[Any]
    """The verifiers traces that train the policy, in order: one, or one for each segment; empty if no
    agent ran."""
    error: str = ""
    """The reason why the episode failed; empty if it ended well."""
    seconds: float = 0.0
    """Wall time."""
    advantage: float | None = None
    """The mean of the advantages of its parts; None before they are computed."""

    @property
    def ok(self) -> bool:
        """Whether it ended without an infrastructure failure; only then does it have a reward."""
        return not self.error

    @property
    def trace(self) -> Any:
        """The last trace, which has the episode's metrics; None if no agent ran."""
        return self.traces[-1] if self.traces else None

    @property
    def reward(self) -> float:
        """The sum of the reward's terms, over all traces."""
        return sum(float(trace.reward) for trace in self.traces) if self.ok else 0.0

    @property
    def terms(self) -> dict[str, float]:
        """The reward's terms by name, over all traces; they add up to the reward."""
        sums: dict[str, float] = {}
        for trace in self.traces:
            for name, term in trace.rewards.items():
                sums[name] = sums.get(name, 0.0) + (0.0 if term is None else float(term.value))
        return sums

    def metric(self, name: str) -> float | None:
        """One of the episode's metrics; None if the episode lacks it."""
        value = None if self.trace is None else self.trace.metrics.get(name)
        return None if value is None else float(value)

    @property
    def info(self) -> dict[str, Any]:
        """The facts that air's environment recorded of the episode."""
        return {} if self.trace is None else dict(self.trace.info.get("air", {}))

    @property
    def sampled_tokens(self) -> int:
        """The number of tokens that the policy sampled."""
        return sum(sum(node.mask) for trace in self.traces for node in trace.nodes)


@dataclass
class Group:
    """Episodes of one prompt."""

    rollouts: list[Rollout] = field(default_factory=list)

    @property
    def has_spread(self) -> bool:
        """Whether the traces of episodes that ended well differ in reward; else nothing can be learnt."""
        rewards = [float(t.reward) for r in self.rollouts if r.ok for t in r.traces]
        return len(rewards) > 1 and max(rewards) - min(rewards) > 1e-9


@dataclass
class Source:
    """One running environment, from which prompts are drawn."""

    name: str
    ratio: float
    group_size: int
    env: vf.Env[Any]
    tasks: list[vf.Task]


def context(
    policy: Policy,
    url: str,
    *,
    temperature: float,
    max_tokens: int | None,
    renderer: Any = None,
) -> vf.ModelContext:
    """The model context with which verifiers' training client asks the server of `policy` at `url`.

    The client sends and receives token ids.

    Args:
        renderer: a `renderers` config; None: the default of the policy's family.
    """
    return vf.ModelContext(
        model=policy.name,
        client=vf.TrainClientConfig(
            base_url=f"{url}/v1",
            api_key_var="AIR_EMBEDDED_KEY",
            renderer=renderer or default_renderer(policy.model.config.model_type),
            renderer_model_name=policy.name,
        ),
        sampling=vf.SamplingConfig(temperature=temperature, max_tokens=max_tokens),
    )


def settled(
    env: vf.EnvConfig, policy: Policy, *, max_context_tokens: int, record_dir: Path | None = None
) -> vf.EnvConfig:
    """`env` with the settings that it leaves to the run: tokenizer, context length, recording folder."""
    if not isinstance(env, ResearchEnvConfig):
        return env
    harness = env.agent.harness or AirHarnessConfig()
    if isinstance(harness, AirHarnessConfig):
        harness = harness.model_copy(
            update={
                "tokenizer": harness.tokenizer or policy.name,
                "max_context_tokens": harness.max_context_tokens or max_context_tokens,
            }
        )
    agent = env.agent.model_copy(update={"harness": harness})
    return env.model_copy(update={"agent": agent, "record_dir": env.record_dir or record_dir})


@asynccontextmanager
async def serving(configs: Sequence[SourceConfig], group_size: int) -> AsyncIterator[list[Source]]:
    """Starts the sources' environments and stops them at the end of the block.

    Raises:
        ConfigError: an environment cannot be built, or has no task.
    """
    async with AsyncExitStack() as stack:
        sources = []
        for config in configs:
            with boundary(ConfigError, f"source {config.resolved_name}", TypeError, ValueError):
                env = vf.load_environment(config.env)
            tasks = list(env.taskset)
            if not tasks:
                raise ConfigError("has no task", where=f"source {config.resolved_name}")
            await stack.enter_async_context(env.serving())
            size = config.group_size or group_size
            sources.append(Source(config.resolved_name, config.ratio, size, env, tasks))
        yield sources


Prompt = tuple[Source, vf.Task]
"""What one group plays."""


def prompts(
    sources: Sequence[Source], episodes: int, seed: int, *, after: int = 0
) -> Iterator[list[Prompt]]:
    """Yields the prompts of each step, for ever: sources drawn by their ratios, each source's tasks in turn.

    Args:
        episodes: the groups of a step have at least so many episodes.
        after: the steps that were done before. A resumed run goes on as if it had never stopped.
    """
    rng = random.Random(seed)
    cycles = [itertools.cycle(source.tasks) for source in sources]
    ratios = [source.ratio for source in sources]
    for step in itertools.count(1):
        chosen: list[Prompt] = []
        remaining = episodes
        while remaining > 0:
            number = rng.choices(range(len(sources)), ratios)[0]
            chosen.append((sources[number], next(cycles[number])))
            remaining -= sources[number].group_size
        if step > after:
            yield chosen


async def play_group(
    source: Source,
    task: vf.Task,
    ctx: vf.ModelContext,
    on_done: Callable[[Rollout], None] | None = None,
) -> Group:
    """Plays one prompt `group_size` times concurrently."""
    plays = [play(source, task, ctx, on_done) for _ in range(source.group_size)]
    return Group(await together(plays))


async def play(
    source: Source,
    task: vf.Task,
    ctx: vf.ModelContext,
    on_done: Callable[[Rollout], None] | None = None,
) -> Rollout:
    """Plays one prompt once, with the environment's retries. A failed episode is returned, not raised."""
    began = time.monotonic()
    episode = await source.env.run_slot(source.env.slots(task)[0], ctx)
    errors = [e for e in (episode.last_error, *(t.last_error for t in episode.traces)) if e]
    error = errors[0] if errors else None
    failed = not episode.ok
    rollout = Rollout(
        source=source.name,
        task=str(getattr(task.data, "task_id", "") or task.data.name or source.name),
        traces=[trace for trace in episode.traces if trace.agent.trainable],
        error=(f"{error.type}: {error.message}" if error else "no reason given") if failed else "",
        seconds=time.monotonic() - began,
    )
    if on_done is not None:
        on_done(rollout)
    return rollout


async def play_many(
    source: Source,
    ctx: vf.ModelContext,
    each: int,
    on_done: Callable[[Rollout], None] | None = None,
    *,
    at_once: int = 32,
) -> list[Rollout]:
    """Plays every prompt of the source `each` times, `at_once` episodes together."""
    plays = [play(source, task, ctx, on_done) for task in source.tasks * each]
    return await together(plays, at_once)
