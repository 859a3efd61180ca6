"""Makes tools for the model from the tools of a server of the Model Context Protocol (MCP) that a run file
(the settings of a run) names. The server is asked for a list of its tools.

Each process asks a server for the list only once. If the server changes its tools later, episodes do not see
the change.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from air.errors import ConfigError, InfrastructureError, MissingError
from air.sandbox import open_box
from air.sandbox.contract.box import Box
from air.tools.base import Reply, Tool, ToolContext
from air.tools.mcp.connection import Channel, check_package
from air.tools.mcp.in_box import ProgramChannel
from air.tools.mcp.listing import Listed, listing
from air.tools.mcp.remote import RemoteChannel
from air.tools.mcp.server import PATIENCE_SECONDS, Server, serving
from air.tools.mcp.settings import McpServer

if TYPE_CHECKING:
    from mcp_types import Tool as McpTool

SECONDS, MAX_LENGTH = 60.0, 8192
"""The default limits of a call: the time in seconds, and the length of the observation in characters."""
_LISTS: dict[str, Sequence[McpTool]] = {}
_LOCK = threading.Lock()


class McpSettings(McpServer):
    """The settings of one MCP server in a run file (the settings of a run), with the method that makes tools
    for the model from the server's tools."""

    def tools(self, folder: Path) -> Sequence[Tool]:
        """Returns the server's tools. Only the first call in a process asks the server for its tool list; a
        server that is a program is started in a box (sandbox) for that purpose."""
        return tools_of(self)

    def applied(self, tool: Tool) -> Tool:
        """Returns the tool unchanged, because the method `tools` has already applied the limits of these
        settings to it. The method of the base class would apply them again."""
        return tool


def tools_of(settings: McpServer) -> list[Tool]:
    """Asks an MCP server for its tools and returns them. Raises MissingError if the server cannot be reached
    or started, and ConfigError if one of its tools cannot be offered."""
    check_package()
    where = f"tool 'mcp' (server {settings.server!r})"
    found = listing(settings.server, _listed(settings, where), (), settings.only)
    if found.refused or not found.tools:
        raise ConfigError(
            f"cannot offer {'; '.join(found.refused) or 'anything: it has no tools'}",
            where=where,
            remedy='name the tools to offer: only = ["…"]',
        )
    digest = hashlib.sha256(settings.model_dump_json(exclude={"headers"}).encode()).hexdigest()
    state = _state(settings)
    return [_tool(one, settings, state, digest) for one in found.tools]


def _tool(
    one: Listed,
    settings: McpServer,
    state: Callable[[ToolContext], Awaitable[Server]],
    digest: str,
) -> Tool:
    seconds = settings.seconds or SECONDS

    async def call(server: Server, /, **arguments: Any) -> Reply:
        answer = await server.call(one.remote, arguments, seconds)
        return Reply(answer.text, "error" if answer.error else "success")

    return Tool(
        name=one.name,
        description=one.description,
        parameters=one.parameters,
        function=call,
        state=state,
        box=settings.box if settings.command else None,
        max_length=settings.max_length or MAX_LENGTH,
        # `Server` keeps the time of a call. Before it and afterwards, a remote server may have to come back.
        seconds=seconds + 2 * (PATIENCE_SECONDS + 3 * (settings.start_seconds + 10)),
        replays=False,
        digest=digest,
    )


def _state(settings: McpServer) -> Callable[[ToolContext], Awaitable[Server]]:
    async def start(context: ToolContext) -> Server:
        server = _server(settings, context.box)
        await server.start()
        return server

    return start


def _server(settings: McpServer, box: Box | None) -> Server:
    channel: Channel
    if settings.command:
        assert box is not None
        channel = ProgramChannel(box, settings.command, env=settings.env, cwd=settings.cwd or None)
    else:
        transport: Any = settings.kind
        channel = RemoteChannel(
            settings.url, [settings.rule], headers=settings.headers, transport=transport
        )
    return Server(settings.server, channel, start_seconds=settings.start_seconds)


def _listed(settings: McpServer, where: str) -> Sequence[McpTool]:
    key = json.dumps(settings.model_dump(mode="json", exclude={"only"}), sort_keys=True)
    with _LOCK:
        if key not in _LISTS:
            try:
                _LISTS[key] = _apart(_ask(settings))
            except InfrastructureError as error:
                remedy = "start it, or correct `url`" if settings.url else "correct `command`"
                raise MissingError(str(error), where=where, remedy=remedy) from error
        return _LISTS[key]


async def _ask(settings: McpServer) -> Sequence[McpTool]:
    if not settings.command:
        async with serving(_server(settings, None)) as server:
            return await server.tools()
    async with await open_box(settings.box) as box, serving(_server(settings, box)) as server:
        return await server.tools()


def _apart(work: Coroutine[Any, Any, Sequence[McpTool]]) -> Sequence[McpTool]:
    """Runs a coroutine to its end in a new thread with its own event loop, and returns the result. The
    caller may itself run in an event loop, which forbids `asyncio.run`."""
    result: list[Sequence[McpTool]] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            result.append(asyncio.run(work))
        except BaseException as error:  # the caller raises it
            failure.append(error)

    thread = threading.Thread(target=run, name="MCP tools")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return result[0]
