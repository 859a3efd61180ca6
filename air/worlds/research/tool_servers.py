"""Runs the MCP (Model Context Protocol) servers that a research task declares, and calls their tools, for one
agent in one box (the isolated place in which the agent works)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from air.actions.base import ToolCall
from air.aio import run_concurrently
from air.errors import StagingError
from air.sandbox.contract.box import Box
from air.tasks.rules import ToolServer
from air.tools.base import Reply, Tool
from air.tools.episode_tools import OpenTools
from air.tools.mcp.connection import Channel
from air.tools.mcp.in_box import ProgramChannel
from air.tools.mcp.listing import Listed, listing
from air.tools.mcp.remote import RemoteChannel
from air.tools.mcp.server import Server
from air.tools.tool_set import ToolSet
from air.worlds.base import Observation

CALL_SECONDS = 60.0
MAX_LENGTH = 16_000


class ToolServers:
    """Runs the MCP (Model Context Protocol) servers that a task declares, for one episode, and calls their
    tools. `open` starts the servers and `close` ends them. `declared` describes the servers. Those that are
    programs run in `box`, the isolated place in which the agent works."""

    def __init__(self, declared: Sequence[ToolServer], box: Box) -> None:
        self._declared, self._box = declared, box
        self._servers = [Server(one.name, _channel(one, box)) for one in declared]
        self._listed: list[tuple[int, Listed]] = []
        self._opened: OpenTools | None = None
        self.schemas: tuple[Mapping[str, Any], ...] = ()
        """The JSON schemas of the offered tools, in the format of the field `tools` in OpenAI's API."""
        self.left_out: tuple[str, ...] = ()
        """For each tool that is not offered, one line with its name and the reason."""

    async def open(self) -> None:
        """Starts the servers and requests their tool lists. If that fails or the servers offer no tool,
        closes all servers and raises InfrastructureError."""
        try:
            await self._start()
        except BaseException:  # cancellation too: nobody else would close them
            await self.close()
            raise

    async def _start(self) -> None:
        await run_concurrently([server.start() for server in self._servers])
        taken: set[str] = set()
        left_out: list[str] = []
        for number, server in enumerate(self._servers):
            found = listing(server.name, await server.tools(), taken)
            taken |= {one.name for one in found.tools}
            left_out += found.refused
            self._listed += [(number, one) for one in found.tools]
        if not self._listed:
            names = ", ".join(server.name for server in self._servers)
            raise StagingError(f"the MCP servers {names} offer no tool: {'; '.join(left_out)}")
        self.left_out = tuple(left_out)
        self._offer()

    def copied_to(self, box: Box) -> ToolServers:
        """Returns a copy of this object with the same tools, for an episode that continues in another box
        (isolated place for the agent), `box`. An MCP (Model Context Protocol) server that is a program starts
        in that box when one of its tools is called for the first time."""
        other = ToolServers(self._declared, box)
        other._listed, other.left_out = self._listed, self.left_out
        other._offer()
        return other

    @property
    def names(self) -> frozenset[str]:
        """The names under which the agent sees the tools of the servers."""
        return frozenset(one.name for _, one in self._listed)

    async def call(self, call: ToolCall) -> Observation:
        """Calls a tool of one of the servers and returns the tool's result as an observation. An error that
        the tool reports also becomes an observation. Raises InfrastructureError if the box has ended or a
        remote server is unreachable."""
        assert self._opened is not None
        result = await self._opened.call(call.name, dict(call.arguments or {}))
        return Observation(result.observation)

    async def close(self) -> None:
        """Ends the servers. A second call does nothing."""
        await asyncio.gather(*(server.close() for server in self._servers))

    def _offer(self) -> None:
        tools = ToolSet(_tool(self._servers[number], one) for number, one in self._listed)
        self.schemas = tools.schemas
        self._opened = OpenTools(tools.tools)  # they have neither states nor pools


def _tool(server: Server, one: Listed) -> Tool:
    async def call(**arguments: Any) -> Reply:
        answer = await server.call(one.remote, arguments, CALL_SECONDS)
        return Reply(answer.text, "error" if answer.error else "success")

    return Tool(
        name=one.name,
        description=one.description,
        parameters=one.parameters,
        function=call,
        max_length=MAX_LENGTH,
        seconds=10 * CALL_SECONDS,  # `Server` has the limit of a call, and may restart first
        replays=False,
    )


def _channel(one: ToolServer, box: Box) -> Channel:
    if one.command:
        return ProgramChannel(box, one.command, user=one.user)
    transport = cast(Literal["streamable-http", "sse"], one.transport)
    return RemoteChannel(one.url, one.hosts, headers=one.headers, transport=transport)
