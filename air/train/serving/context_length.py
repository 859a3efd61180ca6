"""Makes the package `renderers`, which sends the requests of episodes, cache the context length of the
inference server before many episodes start."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import verifiers.v1 as vf
from openai import OpenAIError
from renderers.client import OverlongPromptError, generate
from verifiers.v1.clients.base import BaseClientConfig, build_async_openai

from air.train.model.policy import Policy


async def cache_context_length(ctx: vf.ModelContext, policy: Policy) -> None:
    """Makes the package `renderers` look up the context length of the inference server that `ctx` names, and
    cache it in this process.

    For this, the function requests a reply to a prompt that is longer than `policy` supports. `renderers`
    compares the length of this prompt with the context length and refuses the prompt, so nothing is sampled.
    A server with a longer context, such as a teacher's, gets the prompt, but refuses to sample 0 tokens.

    Without this call, the first requests of many episodes would look up the context length at the same time,
    and would wait for a lock in `renderers`. This lock is bound to one event loop, so episodes in a second
    event loop of the process would fail. Requests do not use the lock once the context length is cached.
    """
    assert isinstance(ctx.client, BaseClientConfig)
    renderer = await asyncio.to_thread(policy.renderer)
    too_long = [0] * (policy.max_length + 1)
    async with build_async_openai(ctx.client) as client:
        # OpenAIError: a server that does not report its context length refuses the prompt itself.
        with suppress(OverlongPromptError, OpenAIError):
            await generate(
                client=client,
                renderer=renderer,
                messages=[],
                model=ctx.model,
                prompt_ids=too_long,
                sampling_params={"max_tokens": 0},
            )
