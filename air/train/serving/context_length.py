"""Makes the package `renderers` learn a server's context length before many episodes ask at once."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import verifiers.v1 as vf
from openai import OpenAIError
from renderers.client import OverlongPromptError, generate
from verifiers.v1.clients.base import BaseClientConfig, build_async_openai

from air.train.model.policy import Policy


async def learn(ctx: vf.ModelContext, policy: Policy) -> None:
    """Sends a prompt that is too long. Nothing is sampled: `renderers` asks the server for its context
    length, remembers it for the process, and refuses the prompt.

    While `renderers` asks, other requests wait for a lock that belongs to the first event loop in which one
    waited: in a second loop of the same process, such episodes would fail. Later requests take no lock.
    """
    assert isinstance(ctx.client, BaseClientConfig)
    renderer = await asyncio.to_thread(policy.renderer)
    too_long = [0] * (policy.max_length + 1)
    async with build_async_openai(ctx.client) as client:
        # OpenAIError: a server that does not tell its context length refuses the prompt itself.
        with suppress(OverlongPromptError, OpenAIError):
            await generate(
                client=client, renderer=renderer, messages=[], model=ctx.model, prompt_ids=too_long
            )
