"""The middleware in vLLM's server records which version of the weights sampled each reply."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from air.train.serving.vllm.middleware import reply_versions
from air.train.serving.vllm.middleware.reply_versions import ReplyVersions, digest


def reply(number: int) -> dict[str, Any]:
    content = [{"token": f"token_id:{number}", "logprob": -0.1}]
    return {"choices": [{"token_ids": [number], "logprobs": {"content": content}}]}


async def generate(request: Request) -> Response:
    number = (await request.json())["number"]
    if number < 0:
        return JSONResponse({"error": "no such number"}, 400)
    whole = JSONResponse(reply(number))
    if number % 2:
        return whole
    body = bytes(whole.body)

    async def parts() -> Any:
        yield body[:5]
        yield body[5:]

    return StreamingResponse(parts(), media_type="application/json")


async def resume(_: Request) -> Response:
    return JSONResponse({})


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(reply_versions.VERSION_ENV, "3")
    monkeypatch.setenv(reply_versions.REPLIES_ENV, str(tmp_path / "replies"))
    return tmp_path / "replies"


async def test_each_reply_has_the_version_in_use_when_it_left(records: Path) -> None:
    post = {"methods": ["POST"]}
    routes = [Route("/inference/v1/generate", generate, **post), Route("/resume", resume, **post)]
    app: Any = Starlette(routes=routes)
    app.add_middleware(ReplyVersions)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://vllm") as client:

        async def ask(number: int) -> httpx.Response:
            return await client.post("/inference/v1/generate", json={"number": number})

        answers = [await ask(1), *await asyncio.gather(ask(2), ask(4)), await ask(-1)]
        for path in ("/resume", "/resume?version=4"):  # the first names no version
            answers += [await ask(6 if path == "/resume" else 7), await client.post(path)]
        answers.append(await ask(9))
    assert [one.status_code for one in answers] == [200, 200, 200, 400, 200, 200, 200, 200, 200]
    assert answers[1].json() == reply(2)
    expected = {1: "3", 2: "3", 4: "3", 6: "3", 7: "3", 9: "4"}
    assert recorded(records) == {digest([n], [-0.1]): version for n, version in expected.items()}


def recorded(file: Path) -> dict[str, str]:
    """The versions in the middleware's file, by digest."""
    return dict(line.split() for line in file.read_text().splitlines())
