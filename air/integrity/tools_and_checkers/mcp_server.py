"""The program of an MCP server (a server of tools) over HTTP that behaves as an agent's calls say. Attacks on
MCP tools with a `url` run it as `python -m air.integrity.tools_and_checkers.mcp_server [PORT]`.

It is a real server of the package `mcp`. Calls of its tool `respond` do not reach that package: the HTTP
response to such a call is what the call asks for. So the agent decides what an HTTP client of air has to
read. A cookie with the name of the header `SESSION_HEADER` replaces this header, so a client that sends a
cookie of another session gets into that session. The program prints a line with its URL when it accepts
requests, and runs until it is killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from http.cookies import SimpleCookie
from typing import Any, Literal

import uvicorn
from mcp.server.mcpserver import Context, MCPServer

from air.integrity.tools_and_checkers.attack import SESSION_HEADER

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
"""The type of an ASGI application, and the types of its arguments."""
STOP_SECONDS = 2
"""The time that open responses get to end after SIGTERM, in seconds. Without it, a client that never closes
its connection would keep the server running."""
ID = "@ID@"
"""In the text of a response, the place of the id of the JSON-RPC request that it answers."""


def server() -> MCPServer[Any]:
    """Returns the MCP server with its tools."""
    made: MCPServer[Any] = MCPServer("attacked", log_level="ERROR")
    kept: dict[str, list[str]] = defaultdict(list)

    @made.tool()
    def join(first: str, second: str) -> str:
        """Joins two texts."""
        return first + second

    @made.tool()
    def keep(text: str, context: Context[Any, Any]) -> str:
        """Keeps a text for later calls of the same session."""
        kept[_session(context)].append(text)
        return "Kept."

    @made.tool()
    def look(context: Context[Any, Any]) -> str:
        """Shows the texts that this session has kept."""
        return f"Kept: {kept[_session(context)]}"

    @made.tool()
    def respond(
        status: int = 200,
        headers: dict[str, str] | None = None,
        body: str = "",
        repeat: int = 1,
        end: Literal["finish", "wait", "break"] = "finish",
    ) -> str:
        """Answers with this HTTP response; the body is sent so many times."""
        raise AssertionError("`Scripted` answers")

    @made.tool()
    def stop() -> str:
        """Ends the server's process at once."""
        os._exit(1)

    return made


def _session(context: Context[Any, Any]) -> str:
    headers = context.headers
    assert headers is not None
    return headers[SESSION_HEADER]


class Scripted:
    """ASGI application: answers calls of the tool `respond` with the response that the call describes, and
    passes all other requests on to `app`."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        scope = _by_cookie(scope)
        body = await _body(receive)
        message = json.loads(body)
        if message.get("method") == "tools/call" and message["params"]["name"] == "respond":
            await _respond(message["id"], message["params"]["arguments"], receive, send)
            return
        unread = [body]

        async def again() -> Event:
            """Returns the request's body, which was read already, at the first call. Later calls return the
            further events of the connection."""
            if unread:
                return {"type": "http.request", "body": unread.pop()}
            return await receive()

        await self._app(scope, again, send)


def _by_cookie(scope: Scope) -> Scope:
    """Returns the scope of an HTTP request with the session that its cookie names, if there is one."""
    headers = dict(scope["headers"])
    cookie = SimpleCookie(headers.get(b"cookie", b"").decode("latin-1")).get(SESSION_HEADER)
    if cookie is None:
        return scope
    named = {**headers, SESSION_HEADER.encode(): cookie.value.encode("latin-1")}
    return {**scope, "headers": list(named.items())}


async def _body(receive: Receive) -> bytes:
    body = b""
    while True:
        event = await receive()
        body += bytes(event.get("body", b""))
        if not event.get("more_body"):
            return body


async def _respond(number: Any, told: Mapping[str, Any], receive: Receive, send: Send) -> None:
    """Sends the response that the arguments `told` of the tool `respond` describe. `number` is the id of the
    JSON-RPC request. A response without an end stops when the client closes the connection."""
    headers = {"content-type": "application/json", **(told.get("headers") or {})}
    pairs = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    start: Event = {
        "type": "http.response.start",
        "status": told.get("status", 200),
        "headers": pairs,
    }
    await send(start)
    body = told.get("body", "").replace(ID, json.dumps(number)).encode()
    gone = asyncio.ensure_future(_disconnected(receive))
    for _ in range(told.get("repeat", 1)):
        if gone.done():
            return
        await send({"type": "http.response.body", "body": body, "more_body": True})
        await asyncio.sleep(0)  # `send` need not yield, and would keep `gone` from being noticed
    if told.get("end") == "wait":
        await gone
    gone.cancel()
    if told.get("end", "finish") == "finish":
        await send({"type": "http.response.body", "body": b""})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def main() -> None:
    """Runs the MCP server on the loopback port that the command line names, or on a free port."""
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    with socket.create_server(("127.0.0.1", port)) as listener:
        app = Scripted(server().streamable_http_app())
        config = uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=STOP_SECONDS)
        http = uvicorn.Server(config)
        print(f"serving on http://localhost:{listener.getsockname()[1]}/mcp", flush=True)
        http.run(sockets=[listener])


if __name__ == "__main__":
    main()
