"""Plays a fixed number of episodes of each task with a loaded policy or a model endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import verifiers.v1 as vf

from air.env.config import AirHarnessConfig, AirTasksetConfig, ResearchEnvConfig
from air.train.config.run_config import SourceConfig
from air.train.loop.rollout import Rollout, context, play_many, serving
from air.train.model.policy import Policy
from air.train.serving.context_length import cache_context_length
from air.train.serving.server import InferenceServer


def research_env(
    tasks: Sequence[str],
    *,
    runtime: str,
    max_turns: int | None,
    record_dir: Path | None = None,
    mlgym_root: Path | None = None,
    tokenizer: str | None = None,
    max_context_tokens: int | None = None,
    warm_boxes: int = 0,
) -> ResearchEnvConfig:
    """Returns the settings of an environment that has each task in `tasks` once.

    `runtime` is the kind of box (where an agent's commands run): `docker`, or `subprocess` for processes
    without a container. `max_turns` limits the turns of an episode; None: each task has its own limit.
    `record_dir` is the folder for trajectories (recorded episodes); None: nothing is recorded. `mlgym_root`
    is the folder of a checkout of MLGym (a benchmark of research tasks). `tokenizer`, a Hugging Face hub id
    or a folder, counts the tokens of observations; None: three bytes count as one token. `max_context_tokens`
    limits the tokens of an episode; None: only the model server limits them. `warm_boxes` is the number of
    boxes that are started in advance for each combination of box settings."""
    harness = AirHarnessConfig(tokenizer=tokenizer, max_context_tokens=max_context_tokens)
    agent = vf.AgentConfig.model_validate(
        {"harness": harness.model_dump(), "runtime": {"type": runtime}, "max_turns": max_turns}
    )
    return ResearchEnvConfig(
        taskset=AirTasksetConfig(tasks=list(tasks), mlgym_root=mlgym_root),
        agent=agent,
        record_dir=record_dir,
        warm_boxes=warm_boxes,
    )


async def evaluate(
    env: ResearchEnvConfig,
    ctx: vf.ModelContext,
    episodes: int | Mapping[str, int],
    on_done: Callable[[Rollout], None] | None = None,
    *,
    at_once: int = 32,
    keep: Callable[[vf.Task], bool] = lambda _: True,
    seed: str | None = None,
) -> list[Rollout]:
    """Plays `episodes` episodes of every task of the environment `env` with the model in `ctx`, and returns
    one rollout (result) per episode. If `episodes` is a mapping, it has the number of episodes by task id;
    tasks that it lacks are not played. At most `at_once` episodes run concurrently. `on_done` is called with
    each episode's rollout when it has ended. `keep` is called with each task object of the library
    `verifiers` (one prompt, such as a task with a seed); those for which it returns false are not played.
    `seed` seeds the sampling of replies, together with the seed of each prompt; None: there is no sampling
    seed."""
    config = SourceConfig.model_construct(name="eval", ratio=1.0, group_size=1, env=env)
    async with serving([config], 1) as (source,):
        source.tasks = [task for task in source.tasks if keep(task)]
        return await play_many(source, ctx, episodes, on_done, at_once=at_once, seed=seed)


@asynccontextmanager
async def served(
    model: Policy,
    *,
    temperature: float,
    max_tokens: int | None,
    max_model_len: int,
    renderer: Any = None,
    deterministic: bool = False,
) -> AsyncIterator[vf.ModelContext]:
    """Async context manager: runs air's own inference server for `model` during the `with` block. Yields a
    `ModelContext` of `verifiers` for this server; its client exchanges token ids, not text. `max_tokens`
    limits the tokens of each reply; None: only the context length limits them. `max_model_len` is the context
    length in tokens, at most that of the model. `renderer` is a config of the package `renderers`; None: the
    renderer of the model's family. With `deterministic`, replies are sampled one at a time and without a
    prefix cache, so that their rounding does not depend on other requests."""
    server = InferenceServer(
        model,
        max_model_len=min(max_model_len, model.max_length),
        alone=deterministic,
        prefix_cache_mb=0 if deterministic else None,
    )
    await asyncio.to_thread(server.start)
    try:
        ctx = context(
            model, server.url, temperature=temperature, max_tokens=max_tokens, renderer=renderer
        )
        await cache_context_length(ctx, model)
        yield ctx
    finally:
        await asyncio.to_thread(server.stop)


def endpoint(
    url: str,
    model: str,
    *,
    api_key_var: str,
    temperature: float,
    max_tokens: int | None,
    top_p: float | None = None,
) -> vf.ModelContext:
    """Returns the settings with which the library `verifiers` requests a model's replies from an existing
    model server: a `ModelContext` (model, client and sampling settings). `url` is the server's
    OpenAI-compatible endpoint, and `model` is the name by which the server knows the model. `api_key_var` is
    the name of the environment variable that holds the API key. `max_tokens` limits the tokens of each reply.
    If `max_tokens` or `top_p` is None, the server's default applies."""
    return vf.ModelContext(
        model=model,
        client=vf.EvalClientConfig(base_url=url.rstrip("/"), api_key_var=api_key_var),
        sampling=vf.SamplingConfig(temperature=temperature, max_tokens=max_tokens, top_p=top_p),
    )
