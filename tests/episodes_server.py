"""A server of episodes in this process, as `air serve openenv` and `air serve ors` run it in theirs."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from air.serve.episodes.catalogue import catalogue
from air.serve.episodes.server import ClientLimit, EpisodesServer
from air.serve.episodes.settings import EpisodesConfig
from air.serve.http.log import Log
from air.serve.http.metrics import Metrics, parse
from air.serve.http.server import bind, http_config, url
from air.serve.openenv.protocol import OpenEnv
from tests.until import until


class Served:
    """A server that answers at `url`."""

    def __init__(self, address: str, server: EpisodesServer) -> None:
        self.url, self.server = address, server

    def ended(self, how: str) -> float:
        """The number of episodes that ended so."""
        metrics = parse(self.server.metrics.text())
        rows = metrics.items()
        return sum(value for name, value in rows if "episodes_total" in name and how in name)


@asynccontextmanager
async def serving(*tasks: str, protocol: Any = OpenEnv, **settings: Any) -> AsyncIterator[Served]:
    """A server of these tasks on a free port, until the block ends. Every client has left by then."""
    config = EpisodesConfig(tasks=tasks, **settings)
    metrics = Metrics()
    async with catalogue(config) as offered:
        client_limit = ClientLimit(config.max_sessions, metrics)
        server = EpisodesServer(config, metrics, Log(io.StringIO()), offered, client_limit)
        spoken = protocol(server)
        listener = bind("127.0.0.1", 0)
        http = uvicorn.Server(http_config(server, [spoken]))
        async with spoken.running():
            running = asyncio.create_task(http.serve(sockets=[listener]))
            try:
                yield Served(url(listener), server)
                await until(lambda: not client_limit.taken)
            finally:
                http.should_exit = True
                await running
                listener.close()
