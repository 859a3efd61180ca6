"""An HTTP server of a test's own, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.types import ASGIApp

from air.serve.server import bind, url


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
