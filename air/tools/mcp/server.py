"""Defines `Server`: a server of the Model Context Protocol (MCP) that an episode uses. This module decides
whether the agent may have caused a failure of the server, or whether it is an infrastructure error.

Any failure of a server in the box (the agent's sandbox) is an observation, which the model sees, because the
agent may have caused it. If a remote server does not answer a call, air tries to reach the server again for
up to `PATIENCE_SECONDS`, because the call may have crashed the server and a supervisor may restart it. If air
reaches the server again, the model is told that the call had no result. If the server stays unreachable, an
InfrastructureError is raised, which the model does not see.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from air.errors import InfrastructureError
from air.tools.mcp.connection import Channel, Connection, ConnectionLost, ErrorResponse
from air.tools.mcp.in_box import ProgramChannel
from air.tools.mcp.results import text_of

if TYPE_CHECKING:
    from mcp_types import Tool

_LOG = logging.getLogger(__name__)
ATTEMPTS, PAUSE_SECONDS = 3, 1.0
"""Two values: the minimum number of attempts to reach a remote server again before it counts as unreachable,
and the pause after the first attempt, in seconds. The pause doubles with each attempt, up to
`LONGEST_PAUSE`."""
PATIENCE_SECONDS, LONGEST_PAUSE = 60.0, 5.0
"""Two times in seconds: how long air tries to reach a remote server that no longer answers, before this
counts as an infrastructure error (not the agent's fault); and the longest pause between two attempts to reach
it."""


@dataclass(frozen=True)
class Answer:
    """The result of a call of an MCP tool, as text for the model."""

    text: str
    error: bool = False
    """Whether the call failed: the tool or the server reported an error, or no result came."""


class Server:
    """A server of the Model Context Protocol (MCP) that one episode uses. If the connection to a remote
    server breaks, it is opened again at once. A program in the box (sandbox) that has ended is started again
    at the next call."""

    def __init__(
        self,
        name: str,
        channel: Channel,
        *,
        start_seconds: float = 30.0,
        pause_seconds: float = PAUSE_SECONDS,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self.name = name
        self._channel = channel
        self._start_seconds, self._pause_seconds = start_seconds, pause_seconds
        self._patience = patience
        self._connection: Connection | None = None
        self._turn = asyncio.Lock()

    @property
    def _remote(self) -> bool:
        return not isinstance(self._channel, ProgramChannel)

    async def start(self) -> None:
        """Starts the server's program in the box (sandbox), or connects to the remote server. Raises
        InfrastructureError if that fails."""
        await self._reach(0.0)

    async def _reach(self, patience: float, end: str = "") -> None:
        """Starts the server in the box (sandbox), with one attempt, or connects to the remote server, with
        repeated attempts: air gives up after a failed attempt if `patience` seconds have passed and there
        were at least `ATTEMPTS` attempts. `end` is the reason why the last connection ended; empty if there
        was none. Raises InfrastructureError if no attempt succeeds."""
        loop = asyncio.get_running_loop()
        until = loop.time() + patience
        for attempt in itertools.count(1):
            try:
                await self._connect()
                return
            except (ConnectionLost, ErrorResponse) as error:
                enough = attempt >= ATTEMPTS and loop.time() >= until
                if enough or not self._remote:
                    before = f" (the last connection ended: {end})" if end else ""
                    message = f"the MCP server {self.name!r} cannot be used: {error}{before}"
                    raise InfrastructureError(message) from None
            await asyncio.sleep(min(self._pause_seconds * 2 ** min(attempt - 1, 10), LONGEST_PAUSE))

    async def tools(self) -> list[Tool]:
        """Returns the tools that the server lists. Raises InfrastructureError if the server does not list
        them."""
        assert self._connection is not None
        try:
            return await self._connection.tools(self._start_seconds)
        except (ConnectionLost, ErrorResponse) as error:
            raise InfrastructureError(
                f"the MCP server {self.name!r} does not list its tools: {error}"
            ) from None

    async def call(self, tool: str, arguments: Mapping[str, Any], seconds: float) -> Answer:
        """Calls the tool named `tool` on the server, with the time limit `seconds`, and returns its result as
        text. If the tool or the server fails, the text describes the failure and the field `error` of the
        answer is true. Raises InfrastructureError if a remote server stays unreachable for too long, or if
        the box or this machine failed."""
        async with self._turn:  # a server is asked one thing at a time, and restarted once
            try:
                connection = await self._connected()
                result = await connection.call(tool, dict(arguments), seconds)
            except ErrorResponse as error:
                return Answer(f"[{self.name}] {error}", error=True)
            except ConnectionLost as error:
                await self._close()
                if self._remote:
                    await self._reach(self._patience, str(error))
                anew = "" if self._remote else "; it starts anew at the next call"
                return Answer(f"[{self.name}: no result: {error}{anew}]", error=True)
        return Answer(text_of(result), error=result.is_error)

    async def close(self) -> None:
        """Ends the connection to the server; a server in the box (sandbox) is killed."""
        await self._close()

    async def _connected(self) -> Connection:
        """Returns the current connection, or a new one if the current connection has broken. Logs why it
        has broken, as no result of a call says so. Raises InfrastructureError if a remote server is
        unreachable for too long, or if the box or this machine failed since the last call, and ConnectionLost
        or ErrorResponse if a server in the box (sandbox) cannot be started."""
        if self._connection is None or not self._connection.alive:
            try:
                # An infrastructure error is raised: a new program would lack the state of the lost one.
                end = self._connection.end() if self._connection is not None else ""
            finally:
                await self._close()
            if end:
                _LOG.warning("the MCP server %r is started or reached again: %s", self.name, end)
            if self._remote:
                await self._reach(self._patience, end)
            else:
                await self._connect()
        assert self._connection is not None
        return self._connection

    async def _connect(self) -> None:
        connection = Connection(self._channel)
        await connection.open(self._start_seconds)
        self._connection = connection

    async def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


@contextlib.asynccontextmanager
async def serving(server: Server) -> AsyncIterator[Server]:
    """Context manager that starts a server, yields it, and closes it at the end. Raises InfrastructureError
    if the server cannot be started or reached."""
    try:
        await server.start()
        yield server
    finally:
        await server.close()
