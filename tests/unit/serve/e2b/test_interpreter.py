"""The contexts of an E2B sandbox's code interpreter, if several requests come at once. No kernel starts."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from air.sandbox.contract.box import Box, BoxSpec
from air.serve.e2b.errors import ApiError
from air.serve.e2b.interpreter import MOST_CONTEXTS, Context, Contexts, Execute
from air.serve.e2b.sandbox import Sandbox, SandboxSettings


class Accounts:
    """A box with one account. Requests to the server take turns at each reading of a file."""

    async def read(self, path: str, **_: object) -> bytes:
        await asyncio.sleep(0)
        return b"user:x:1000:1000::/home/user:/bin/sh\n"


@pytest.fixture
def contexts() -> Contexts:
    sandbox = Sandbox(SandboxSettings("any"), BoxSpec(provider="process"))
    sandbox.box = cast(Box, Accounts())
    return Contexts(sandbox)


async def test_first_executions_at_once_share_the_default_context(contexts: Contexts) -> None:
    first, second = await asyncio.gather(*(contexts.of(Execute(code="1")) for _ in range(2)))
    assert first is second
    assert contexts.all() == [first]
    await contexts.remove(first.id)
    assert await contexts.of(Execute(code="1")) is not first


async def test_requests_at_once_do_not_exceed_the_limit_on_contexts(contexts: Contexts) -> None:
    works = (contexts.create(None, None) for _ in range(MOST_CONTEXTS + 2))
    created = await asyncio.gather(*works, return_exceptions=True)
    assert sum(isinstance(one, Context) for one in created) == MOST_CONTEXTS
    refused = [one.status for one in created if isinstance(one, ApiError)]
    assert refused == [429, 429]
