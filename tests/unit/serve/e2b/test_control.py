"""E2B's control plane: requests for sandboxes that repeat an earlier request, which failed."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import httpx
import pytest
from starlette.applications import Starlette

from air.sandbox.contract.box import BoxLimits, BoxSpec
from air.serve.e2b.control import Control
from air.serve.e2b.errors import ApiError
from air.serve.e2b.sandbox import Sandbox, SandboxSettings
from air.serve.e2b.sandboxes import Sandboxes
from air.serve.e2b.templates import Templates

REQUEST: dict[str, Any] = {
    "url": "/sandboxes",
    "json": {"templateID": "base"},
    "headers": {"Idempotency-Key": "once"},
}


class FailsOnce:
    """Sandboxes of which the first cannot be created. Its creation ends when `go_on` is set."""

    def __init__(self, error: Exception) -> None:
        self.error: Exception | None = error
        self.began, self.go_on = asyncio.Event(), asyncio.Event()

    async def create(self, settings: SandboxSettings, seconds: int) -> Sandbox:
        self.began.set()
        await self.go_on.wait()
        if (error := self.error) is not None:
            self.error = None
            raise error
        return Sandbox(settings, BoxSpec())


def _client(sandboxes: FailsOnce) -> httpx.AsyncClient:
    control = Control(cast(Sandboxes, sandboxes), Templates(BoxLimits()), "")
    app = Starlette(routes=control.routes())
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost")


@pytest.mark.parametrize("error", [ApiError(503, "no box"), OSError("a full disk")])
async def test_a_failed_creation_is_not_the_answer_to_a_repeated_request(error: Exception) -> None:
    sandboxes = FailsOnce(error)
    sandboxes.go_on.set()
    async with _client(sandboxes) as client:
        answers = [await client.post(**REQUEST) for _ in range(3)]
    assert [answer.status_code >= 500 for answer in answers] == [True, False, False]
    assert answers[1].json() == answers[2].json()


async def test_a_creation_that_fails_when_its_client_has_left_is_forgotten() -> None:
    sandboxes = FailsOnce(ApiError(503, "no box"))
    async with _client(sandboxes) as client:
        request = asyncio.create_task(client.post(**REQUEST))
        await sandboxes.began.wait()
        request.cancel()
        await asyncio.wait([request])
        sandboxes.go_on.set()
        for _ in range(10):  # the creation ends
            await asyncio.sleep(0)
        assert (await client.post(**REQUEST)).status_code == 201
