"""Serves OpenEnv's protocol: clients play episodes over the WebSocket `/ws`, and HTTP requests describe the
server.

In OpenEnv, the HTTP requests `POST /reset` and `POST /step` would create a new environment each time, so that
they cannot play an episode. The server refuses them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from air import json_lines
from air.errors import ConfigError
from air.serve.episodes import task_routes
from air.serve.episodes.server import EpisodesServer, Full
from air.serve.episodes.task_routes import NAME, Refused, answering
from air.serve.http.app import Protocol, body_of
from air.serve.openenv import messages
from air.serve.openenv.session import Session, rpc

RESERVED = {"reset", "step", "state", "close"}
"""Names that tools must not have, because OpenEnv's protocol itself uses them."""


class OpenEnv(Protocol):
    """OpenEnv's HTTP interface on an episode server: clients play episodes over a WebSocket. The constructor
    raises ConfigError if a task has a tool with a name in `RESERVED`."""

    name = "openenv"

    def __init__(self, server: EpisodesServer) -> None:
        self._server = server
        for task in server.catalogue.tasks.values():
            names = {each["function"]["name"] for each in task.tools}
            if names & RESERVED:
                raise ConfigError(
                    f"task {task.id} has a tool named {min(names & RESERVED)!r}, which OpenEnv reserves",
                    where="air serve openenv",
                    remedy="serve it by `air serve ors`",
                )

    def routes(self) -> Sequence[BaseRoute]:
        described = _openapi()

        async def metadata(_: Request) -> dict[str, Any]:
            text = f"Tasks of air: {', '.join(self._server.catalogue.tasks)}"
            return {"name": NAME, "description": text, "version": version("air-agent")}

        async def schema(_: Request) -> dict[str, Any]:
            return messages.SCHEMAS

        async def openapi(_: Request) -> dict[str, Any]:
            return described

        async def mcp(request: Request) -> Response:
            try:
                wanted = json_lines.decode(await body_of(request, self._server.config.max_body_mb))
            except ValueError:
                wanted = None
            return JSONResponse(rpc(self._server, wanted))

        async def refused(request: Request) -> Response:
            raise Refused(501, f"{request.url.path} cannot play an episode: use the WebSocket /ws")

        return [
            WebSocketRoute("/ws", self._serve),
            Route("/metadata", answering(metadata)),
            Route("/schema", answering(schema)),
            Route("/openapi.json", answering(openapi)),
            Route("/mcp", mcp, methods=["POST"]),
            Route("/reset", answering(refused), methods=["POST"]),
            Route("/step", answering(refused), methods=["POST"]),
            Route("/state", answering(refused)),
            *task_routes.routes(self._server),
        ]

    async def _serve(self, socket: WebSocket) -> None:
        await socket.accept()
        client_limit = self._server.client_limit
        try:
            if socket.query_params.get("session_id"):
                text = "the server has no sessions to attach to: connect without session_id"
                await socket.send_text(messages.error("SESSION_ERROR", text))
                return
            try:
                client_limit.take()
            except Full as error:
                counts = {"active_sessions": client_limit.taken, "max_sessions": client_limit.total}
                await socket.send_text(messages.error("CAPACITY_REACHED", str(error), **counts))
                return
            try:
                await Session(self._server, socket).run()
            finally:
                client_limit.free()
        except WebSocketDisconnect:
            pass  # the client left while it was answered
        finally:
            if socket.application_state is WebSocketState.CONNECTED:
                await _close(socket)


async def _close(socket: WebSocket) -> None:
    with contextlib.suppress(RuntimeError, WebSocketDisconnect):  # the client closed it first
        await socket.close()


def _openapi() -> dict[str, Any]:
    """Returns the OpenAPI description of the server's HTTP requests. `/reset`, `/step` and `/state` are left
    out, because the server refuses them."""
    paths = {
        "/health": "get",
        "/metadata": "get",
        "/schema": "get",
        "/mcp": "post",
        "/list_environments": "get",
        "/{env}/splits": "get",
        "/{env}/tasks": "post",
        "/{env}/num_tasks": "post",
        "/{env}/task": "post",
        "/{env}/task_range": "post",
    }
    answers = {"200": {"description": "JSON"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "air serve openenv", "version": "1.0.0"},
        "paths": {path: {method: {"responses": answers}} for path, method in paths.items()},
    }
