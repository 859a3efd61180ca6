"""A server of tools in this process, as `air serve tools` runs it in its own; and one of any application."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import uvicorn
from starlette.types import ASGIApp

from air.serve.http.log import Log
from air.serve.http.metrics import Metrics, parse
from air.serve.http.server import bind, http_config, url
from air.serve.tools.chat import Chat
from air.serve.tools.completions import Completions
from air.serve.tools.server import ToolsServer, opened
from air.serve.tools.settings import ToolsConfig
from air.serve.tools.verl_tool_protocol import Observations

BOX = '{provider = "process", limits = {memory_mb = 256, pids = 64, disk_mb = 16}}'
"""The box of tools in tests that need no container, as a TOML table."""


class Served:
    """A server that answers at `url`, and a client of it."""

    def __init__(self, address: str, server: ToolsServer, http: httpx.AsyncClient) -> None:
        self.url, self.server, self.http = address, server, http

    async def get(self, *actions: tuple[str, str], **more: Any) -> httpx.Response:
        """Sends actions, each with the id of its trajectory, as the original's clients do."""
        body = {"trajectory_ids": [name for name, _ in actions], "actions": [a for _, a in actions]}
        return await self.http.post("/get_observation", json=body | more)

    async def observation(self, action: str, name: str = "one", **more: Any) -> Any:
        """The answer to one action: observation, done, valid."""
        response = await self.get((name, action), **more)
        assert response.status_code == 200, response.text
        answer = response.json()
        return answer["observations"][0], answer["dones"][0], answer["valids"][0]

    def metric(self, name: str) -> float:
        """The sum of a metric's values."""
        rows = parse(self.server.metrics.text()).items()
        return sum(value for key, value in rows if key.startswith(name))


@asynccontextmanager
async def running(app: ASGIApp) -> AsyncIterator[str]:
    """Serves an application on a free port, and yields its URL."""
    listener = bind("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", ws="none"))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield url(listener)
    finally:
        server.should_exit = True
        await task
        listener.close()


@asynccontextmanager
async def serving(*tools: str, **settings: Any) -> AsyncIterator[Served]:
    """A server of these tools on a free port, until the block ends."""
    config = ToolsConfig(tools=tools, **settings)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(opened(config, Metrics(), Log(io.StringIO())))
        spoken: list[Any] = [Observations(server)]
        spoken += [Chat(server), Completions(server)] if config.model_url else []
        for each in spoken:
            await stack.enter_async_context(each.running())
        listener = bind("127.0.0.1", 0)
        stack.callback(listener.close)
        http = uvicorn.Server(http_config(server, spoken))
        running = asyncio.create_task(http.serve(sockets=[listener]))
        try:
            async with httpx.AsyncClient(base_url=url(listener), timeout=120) as client:
                yield Served(url(listener), server, client)
        finally:
            http.should_exit = True
            await running
