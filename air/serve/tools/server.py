"""The state that the protocols of a tool server (`air serve tools`) share, and the function that runs the
server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from air.sandbox.contract.box import NOT_ISOLATED
from air.serve.http import server as http_server
from air.serve.http.app import BaseServer, Protocol
from air.serve.http.boxes import Boxes
from air.serve.http.log import Log
from air.serve.http.metrics import Metrics
from air.serve.tools.sessions import Sessions
from air.serve.tools.settings import ToolsConfig


@dataclass(frozen=True)
class ToolsServer(BaseServer):
    """The state that the protocols of a tool server (`air serve tools`) share: settings, metrics, log, and
    the sessions, which hold the opened tools."""

    config: ToolsConfig
    sessions: Sessions

    def health_fields(self) -> dict[str, Any]:
        sessions = self.sessions
        counts = {"open": sessions.taken, "max": sessions.most, "queued": sessions.waiting}
        return {"tools": list(sessions.tools.tools), "sessions": counts}

    def count(self, tool: str) -> None:
        """Counts one call of the tool called `tool` in the server's metrics."""
        self.metrics.add("air_serve_tool_calls_total", "Calls of tools.", tool=tool)


@asynccontextmanager
async def opened(config: ToolsConfig, metrics: Metrics, log: Log) -> AsyncIterator[ToolsServer]:
    """Async context manager: loads the tools, and yields the state of a tool server (`air serve tools`). At
    the end of the block, all boxes (containers or processes in which tools run) are closed. Raises UsageError
    if a tool does not exist or cannot be used on this machine."""
    tools = config.tool_set()
    if tools.box is not None and tools.box.provider == "process":
        log.event("warning", text=NOT_ISOLATED)
    boxes = Boxes(config.max_sessions, 0, metrics, fresh=True)
    async with boxes:
        sessions = Sessions(tools, boxes, config.max_sessions, config.max_queued, metrics)
        yield ToolsServer(config, metrics, log, sessions)
    log.event("stop", boxes=boxes.pool.stats.live)


async def serve_tools(
    config: ToolsConfig, protocols: Sequence[Callable[[ToolsServer], Protocol]], **options: Any
) -> None:
    """Runs the server of `air serve tools` until SIGINT or SIGTERM. `protocols` are the classes of its
    protocols; each is called with the server's state. `options` are the keyword arguments `say` (prints the
    server's URL) and `log` of `air.serve.http.server.run`."""
    await http_server.run(
        config, lambda metrics, log: opened(config, metrics, log), protocols, **options
    )
