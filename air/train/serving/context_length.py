"""Makes the package `renderers` learn a server's context length before many episodes start."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import verifiers.v1 as vf
from openai import OpenAIError
from renderers.client import OverlongPromptError, generate
from verifiers.v1.clients.base import BaseClientConfig, build_async_openai

from air.train.model.policy import Policy


async def learn(ctx: vf.ModelContext, policy: Policy) -> None:
    """Sends one prompt that is too long, so that `renderers` learns the context length. `renderers` asks the
    server for it, remembers it in this process, and refuses the prompt, so nothing is sampled.

    Without this call, the first requests of many episodes would wait for a lock while `renderers` asks. The
    lock belongs to the first event loop in which a request waited, so in a second event loop of the same
    process such episodes would fail. When the context length is known, requests take no lock.
    """
    assert isinstance(ctx.client, BaseClientConfig)
    renderer = await asyncio.to_thread(policy.renderer)
    too_long = [0] * (policy.max_length + 1)
    async with build_async_openai(ctx.client) as client:
        # OpenAIError: a server that does not report its context length refuses the prompt itself.
        with suppress(OverlongPromptError, OpenAIError):
            await generate(
                client=client, renderer=renderer, messages=[], model=ctx.model, prompt_ids=too_long
            )
