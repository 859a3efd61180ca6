"""Plays a fixed number of episodes of each task with a loaded policy or a model endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import verifiers.v1 as vf

from air.env.config import ResearchEnvConfig
from air.train.config.run_config import SourceConfig
from air.train.loop.rollout import Rollout, context, play_many, serving
from air.train.model.policy import Policy
from air.train.serving.context_length import cache_context_length
from air.train.serving.server import InferenceServer


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
