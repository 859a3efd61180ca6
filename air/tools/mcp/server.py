"""`Server`: one MCP server in one episode, with the rules of whose fault its failures are.

A server in the box is the agent's affair once the episode runs: whatever it does is an observation. If a call
of a remote server gets no answer, the server is asked anew, until its patience ends: a call may have crashed
it, and something may start it again. If it comes back, the call was at fault, which the model is told; if it
stays away, that is a failure of the infrastructure.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from air.errors import InfrastructureError
from air.tools.mcp.connection import Answered, Channel, Connection, Lost
from air.tools.mcp.in_box import ProgramChannel
from air.tools.mcp.results import text_of

if TYPE_CHECKING:
    from mcp_types import Tool

ATTEMPTS, PAUSE_SECONDS = 3, 1.0
"""How often a remote server is asked before it counts as away, and the first pause between."""
PATIENCE_SECONDS, LONGEST_PAUSE = 60.0, 5.0
"""How long a remote server that was there may be away, and the longest pause between two questions."""


@dataclass(frozen=True)
class Answer:
    """What a call of a tool gives."""

    text: str
    error: bool = False
    """Whether the tool, or the server, says that the call failed."""


class Server:
    """One server in one episode."""

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
        """Starts or reaches the server. Raises InfrastructureError if that fails."""
        await self._reach(0.0)

    async def _reach(self, patience: float) -> None:
        """Starts or reaches the server, within some seconds, or else by a few attempts."""
        loop = asyncio.get_running_loop()
        until = loop.time() + patience
        for attempt in itertools.count(1):
            try:
                await self._connect()
                return
            except (Lost, Answered) as error:
                enough = attempt >= ATTEMPTS and loop.time() >= until
                if enough or not self._remote:
                    message = f"the MCP server {self.name!r} cannot be used: {error}"
                    raise InfrastructureError(message) from None
            await asyncio.sleep(min(self._pause_seconds * 2 ** min(attempt - 1, 10), LONGEST_PAUSE))

    async def tools(self) -> list[Tool]:
        """Returns the tools that the server lists. Raises InfrastructureError if that fails."""
        assert self._connection is not None
        try:
            return await self._connection.tools(self._start_seconds)
        except (Lost, Answered) as error:
            raise InfrastructureError(
                f"the MCP server {self.name!r} does not list its tools: {error}"
            ) from None

    async def call(self, tool: str, arguments: Mapping[str, Any], seconds: float) -> Answer:
        """Calls a tool. Raises InfrastructureError if a remote server is away."""
        async with self._turn:  # a server is asked one thing at a time, and restarted once
            try:
                connection = await self._connected()
                result = await connection.call(tool, dict(arguments), seconds)
            except Answered as error:
                return Answer(f"[{self.name}] {error}", error=True)
            except Lost as error:
                await self._close()
                if self._remote:
                    await self._reach(self._patience)
                anew = "" if self._remote else "; it starts anew at the next call"
                return Answer(f"[{self.name}: no result: {error}{anew}]", error=True)
        return Answer(text_of(result), error=result.is_error)

    async def close(self) -> None:
        """Ends the server, or the connection with it."""
        await self._close()

    async def _connected(self) -> Connection:
        """Returns a connection, a new one if the last has broken since."""
        if self._connection is None or not self._connection.alive:
            await self._close()
            if self._remote:
                await self._reach(self._patience)
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
    """Context manager: starts a server, and closes it at the end."""
    try:
        await server.start()
        yield server
    finally:
        await server.close()
