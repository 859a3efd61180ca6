"""Plays groups of episodes for training. All episodes of a group have the same task, so that their rewards
can be compared.

A source of tasks is one `[[orchestrator.train.source]]` of the run file (TOML): an environment and its tasks.
A rollout is the result of one episode: its traces (`verifiers`' records of conversations) or its error.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
)
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import verifiers.v1 as vf

from air.aio import run_concurrently
from air.env.config import AirHarnessConfig, ResearchEnvConfig
from air.errors import ConfigError, boundary
from air.train.config.env_source import EnvSource
from air.train.model.policy import Policy, default_renderer


@dataclass
class Rollout:
    """The result of one episode, for training: its task, its conversations (traces), and its error if it
    failed."""

    source: str
    task: str
    traces: list[Any]
    """The traces (`verifiers`' records of conversations) that train the policy, in order: one for the whole
    episode or, if the episode is divided into segments at its gradings, one for each segment. Empty if no
    agent ran."""
    error: str = ""
    """Why the episode failed, or an empty string if it ended without an error."""
    seconds: float = 0.0
    weights_version: int | None = None
    """The oldest version of the weights that sampled a reply of the episode. A version is the number of the
    training step that made the weights; 0 is the weights at the run's start. None if not known, or if
    another model than the policy sampled the replies."""
    reply_versions: dict[int, int] = field(default_factory=dict)
    """The version of the weights that sampled each reply. A key is Python's `id()` of the reply's node
    (message) in the episode's trace, `verifiers`' record of the conversation. Empty if one version sampled
    all replies."""
    advantage: float | None = None
    """The mean of the advantages of the episode's parts; a part is the whole episode, a segment or a turn.
    None before the advantages are computed, and None for an episode that is not trained on."""

    @property
    def ok(self) -> bool:
        """Whether the episode ended without an error. Episodes with errors are not trained on."""
        return not self.error

    @property
    def trace(self) -> Any:
        """The last of the episode's traces (`verifiers`' records of conversations), which contains the
        metrics of the whole episode; None if no agent ran."""
        return self.traces[-1] if self.traces else None

    @property
    def reward(self) -> float:
        """The episode's reward: the sum of the rewards of its traces (`verifiers`' records: one for the whole
        episode, or one for each segment), or 0 if the episode failed."""
        return sum(float(trace.reward) for trace in self.traces) if self.ok else 0.0

    @property
    def terms(self) -> dict[str, float]:
        """The terms of the episode's reward, by name. If the episode is recorded as several traces, one for
        each segment, each term is summed over them."""
        sums: dict[str, float] = {}
        for trace in self.traces:
            for name, term in trace.rewards.items():
                sums[name] = sums.get(name, 0.0) + (0.0 if term is None else float(term.value))
        return sums

    def metric(self, name: str) -> float | None:
        """Returns the episode's metric `name`, or None if the episode has no such metric."""
        value = None if self.trace is None else self.trace.metrics.get(name)
        return None if value is None else float(value)

    @property
    def info(self) -> dict[str, Any]:
        """The data about the episode that air's environment recorded, which is `info["air"]` of the last
        trace (`verifiers`' record of the conversation); empty if there are none."""
        return {} if self.trace is None else dict(self.trace.info.get("air", {}))

    def version_of(self, node: Any) -> int | None:
        """Returns the version of the weights that sampled a reply: the number of the training step that made
        these weights, or None if not known. `node` is the reply's node (message) in one of the episode's
        traces, `verifiers`' records of conversations."""
        return self.reply_versions.get(id(node), self.weights_version)

    @property
    def sampled_tokens(self) -> int:
        """The number of tokens that the policy sampled in this episode."""
        return sum(sum(node.mask) for trace in self.traces for node in trace.nodes)


@dataclass
class Group:
    """The episodes of one task whose rewards are compared with each other in a training step."""

    rollouts: list[Rollout] = field(default_factory=list)
    greedy: Rollout | None = None
    """One more episode of the task, sampled at temperature 0, whose reward is a baseline. It is not trained
    on and does not count in the step's means. None if the algorithm needs no such episode."""
    replays: int = 0
    """The number of earlier groups of the same prompt in this step that were discarded because all their
    rewards were equal."""

    @property
    def played(self) -> list[Rollout]:
        """All episodes of the group: those in `rollouts`, then, if there is one, the greedy episode (sampled
        at temperature 0)."""
        return [*self.rollouts, *([self.greedy] if self.greedy is not None else [])]

    @property
    def lacks_spread(self) -> bool:
        """Whether the group teaches nothing because all its rewards are equal, including that of the greedy
        episode (sampled at temperature 0). False if `rollouts` has fewer than two rewards to compare; only
        episodes without an error have rewards."""
        scored = sum(len(rollout.traces) for rollout in self.rollouts if rollout.ok)
        return scored > 1 and not self.has_spread

    @property
    def has_spread(self) -> bool:
        """Whether at least two rewards in the group differ by more than rounding errors. All episodes without
        an error count, including the greedy one (sampled at temperature 0); an episode that is divided into
        segments has one reward per segment. Without spread, algorithms that compare rewards compute the
        advantage 0 everywhere."""
        rewards = [float(t.reward) for r in self.played if r.ok for t in r.traces]
        return len(rewards) > 1 and max(rewards) - min(rewards) > 1e-9


@dataclass
class Source:
    """A source of tasks (`[[orchestrator.train.source]]` of the run file), with its running environment.
    `ratio` is its weight when prompts are drawn, and `group_size` the number of episodes in each of its
    groups."""

    name: str
    ratio: float
    group_size: int
    env: vf.Env[Any]
    tasks: list[vf.Task]
    level: int | None = None
    """The present level of the source's curriculum (tasks that get harder during the run), counted from 1;
    `tasks` are the tasks of this level. None if the source has no levels."""


def context(
    policy: Policy,
    url: str,
    *,
    temperature: float,
    max_tokens: int | None,
    renderer: Any = None,
    name: str | None = None,
) -> vf.ModelContext:
    """Returns a `ModelContext` of the library `verifiers` (model, client and sampling settings) for the
    inference server that serves `policy`. `url` is the server's root address, without `/v1`. The client sends
    and receives token ids.

    `max_tokens` limits the tokens of one reply; None: no limit. `renderer` is a config of the package
    `renderers`, which converts chat messages to token ids; None selects the default for the policy's model
    type. `name` is the model's name on the server; None: the policy's name.
    """
    return vf.ModelContext(
        model=name or policy.name,
        client=vf.TrainClientConfig(
            base_url=f"{url}/v1",
            api_key_var="AIR_EMBEDDED_KEY",
            renderer=renderer or default_renderer(policy.model.config.model_type),
            renderer_model_name=policy.name,
        ),
        sampling=vf.SamplingConfig(temperature=temperature, max_tokens=max_tokens),
    )


def seeded(ctx: vf.ModelContext, seed: str) -> vf.ModelContext:
    """Returns a copy of `ctx` in which sampling has a seed. The seed is a number, computed as a hash of the
    text `seed`."""
    number = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:6])  # exact in any JSON parser
    return replace(ctx, sampling=ctx.sampling.model_copy(update={"seed": number}))


def greedy(ctx: vf.ModelContext) -> vf.ModelContext:
    """Returns a copy of `ctx` with temperature 0, so that the server always chooses the most probable
    token."""
    return replace(ctx, sampling=ctx.sampling.model_copy(update={"temperature": 0.0}))


def with_defaults(
    env: vf.EnvConfig, policy: Policy, *, max_context_tokens: int, record_dir: Path | None = None
) -> vf.EnvConfig:
    """Returns a copy of the environment config `env` in which settings that the user left out are filled in:
    `record_dir` as the folder of trajectories and, if air's own harness (which lets a model play an episode)
    is used, the tokenizer of `policy` and `max_context_tokens`. An `env` that is not a `ResearchEnvConfig` is
    returned unchanged."""
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
async def serving(configs: Sequence[EnvSource], group_size: int) -> AsyncIterator[list[Source]]:
    """Async context manager that runs the environments of the given sources of tasks during the `with` block.
    Yields one `Source` for each config. `group_size` applies to configs that set none. Raises ConfigError if
    an environment cannot be loaded or has no task."""
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


Gate = AbstractAsyncContextManager[None]
"""A context manager that is entered for each episode, such as a semaphore. It can limit the number of
simultaneous episodes."""
_OPEN: Gate = nullcontext()

Prompt = tuple[Source, vf.Task]
"""The starting point of a group: a source of tasks, and the task that all episodes of the group play."""


Positions = Mapping[str, int]
"""The number of prompts that a run has drawn so far from each source of tasks, from which a resumed run
continues. A key consists of the source's name, its index among the sources of this name (counted from 0) and,
if the source has levels (a curriculum of tasks that get harder), the level."""


def prompts(
    sources: Sequence[Source], episodes: int, seed: int, step: int, positions: Positions
) -> tuple[list[Prompt], Positions]:
    """Chooses the prompts of training step `step`. A prompt is a pair (source, task), for which a group of
    episodes is played. Returns the prompts, and the sources' positions (numbers of drawn prompts) after this
    step.

    The source of each prompt is drawn at random, with probabilities in proportion to the sources' fields
    `ratio`; `seed` and `step` seed the random generator. The task is the next one of this source, and after
    the last task the first again. `positions` has the number of prompts that were drawn from each source
    before this step; a source without an entry counts as 0. Prompts are drawn until their groups together
    have at least `episodes` episodes.
    """
    rng = random.Random(f"prompts {seed} {step}")
    names = [source.name for source in sources]
    keys = [
        f"{name} {names[:place].count(name)}"
        + ("" if sources[place].level is None else f" level {sources[place].level}")
        for place, name in enumerate(names)
    ]
    ratios = [source.ratio for source in sources]
    after = dict(positions)
    batch: list[Prompt] = []
    remaining = episodes
    while remaining > 0:
        ((key, source),) = rng.choices(list(zip(keys, sources, strict=True)), ratios)
        number = after.get(key, 0)
        batch.append((source, source.tasks[number % len(source.tasks)]))
        after[key] = number + 1
        remaining -= source.group_size
    return batch, after


async def play_group(
    source: Source,
    task: vf.Task,
    ctx: vf.ModelContext,
    on_done: Callable[[Rollout], None] | None = None,
    *,
    seed: str | None = None,
    with_greedy: bool = False,
    gate: Gate = _OPEN,
) -> Group:
    """Plays a group of `source.group_size` episodes of `task` concurrently, and returns the group. `ctx`
    names the model, its server and the sampling settings. `on_done` is called with each rollout when its
    episode ends.

    The sampling seed of each episode is derived from `seed` and the episode's number in the group. If `seed`
    is None, episodes have no sampling seed. With `with_greedy`, one more episode is played at temperature 0.
    Each episode runs inside the context manager `gate`, which can limit the number of simultaneous episodes.
    """
    each = [
        ctx if seed is None else seeded(ctx, f"{seed} {number}")
        for number in range(source.group_size)
    ]
    each += [greedy(ctx)] * with_greedy

    async def gated(one: vf.ModelContext) -> Rollout:
        async with gate:
            return await play(source, task, one, on_done)

    rollouts = await run_concurrently([gated(one) for one in each])
    size = source.group_size
    return Group(rollouts[:size], rollouts[size] if with_greedy else None)


async def play(
    source: Source,
    task: vf.Task,
    ctx: vf.ModelContext,
    on_done: Callable[[Rollout], None] | None = None,
) -> Rollout:
    """Plays one episode of `task`, and returns its rollout (the recorded episode). `ctx` names the model, its
    server and the sampling settings. `on_done` is called with the rollout. A failed episode is played again
    if the setting `retries` of the environment asks for this. If the last attempt also fails, the rollout's
    field `error` says why; nothing is raised."""
    began = time.monotonic()
    episode = await source.env.run_slot(source.env.slots(task)[0], ctx)
    errors = [e for e in (episode.last_error, *(t.last_error for t in episode.traces)) if e]
    error = errors[0] if errors else None
    failed = not episode.ok
    rollout = Rollout(
        source=source.name,
        task=task_name(source, task),
        traces=[trace for trace in episode.traces if trace.agent.trainable],
        error=(f"{error.type}: {error.message}" if error else "no reason given") if failed else "",
        seconds=time.monotonic() - began,
    )
    if on_done is not None:
        on_done(rollout)
    return rollout


def task_name(source: Source, task: vf.Task) -> str:
    """Returns the task's id if it is a task of air; otherwise the task's name, or the source's name if the
    task has none."""
    return str(getattr(task.data, "task_id", "") or task.data.name or source.name)


async def play_many(
    source: Source,
    ctx: vf.ModelContext,
    each: int | Mapping[str, int],
    on_done: Callable[[Rollout], None] | None = None,
    *,
    at_once: int = 32,
    seed: str | None = None,
) -> list[Rollout]:
    """Plays several episodes of every task of the source, at most `at_once` at the same time, and returns
    their rollouts. `each` is the number of episodes of every task, or a mapping from task ids to such
    numbers. Tasks whose id is not in the mapping are not played. If several tasks have the same id (for
    example, the questions of one benchmark), the number counts their episodes together: with 3 episodes for
    two tasks, the first is played twice.

    The sampling seed of each episode is derived from `seed` and from the seed of its task, which must be a
    task of air. If `seed` is None, episodes have no sampling seed. Raises ValueError if `seed` is given and a
    task would be played more than once: the episodes would be copies of each other."""
    if isinstance(each, Mapping):
        prompts_of: dict[str, list[vf.Task]] = {}
        for task in source.tasks:
            prompts_of.setdefault(task_name(source, task), []).append(task)
        wanted = [
            chosen[number % len(chosen)]
            for number in range(max(each.values(), default=0))
            for name, chosen in prompts_of.items()
            if number < each.get(name, 0)
        ]
    else:
        wanted = source.tasks * each
    if seed is not None and len({id(task) for task in wanted}) < len(wanted):
        raise ValueError("a sampling seed would be used twice for the same task")

    def own(data: Any) -> vf.ModelContext:
        return ctx if seed is None else seeded(ctx, f"{seed} {data.seed}")

    plays = [play(source, task, own(task.data), on_done) for task in wanted]
    return await run_concurrently(plays, at_once)
