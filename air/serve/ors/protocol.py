"""Serves the HTTP routes of ORS (Open Reward Standard, a protocol with which clients play episodes of a
server's tasks). The header `X-Session-ID` of a request names the client's session, which is one episode. The
results of tool calls are streamed.

Most paths exist with and without the environment's name as their first part, because common clients omit the
name.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from air.aio import cancel_and_wait
from air.serve.episodes import task_routes
from air.serve.episodes.offered_tasks import Schema
from air.serve.episodes.server import EpisodesServer
from air.serve.episodes.task_routes import NAME, Refused, StrictBody, answering, check
from air.serve.http.app import Protocol
from air.serve.ors import events
from air.serve.ors.sessions import Session, Sessions

PREFIXES = ("", "/{env}")
Handler = Callable[[Request], Awaitable[Any]]


class _Create(StrictBody):
    env_name: str | None = None
    task_spec: dict[str, Any] | None = None
    split: str | None = None
    index: int | None = None
    toolset_name: str | None = None


class _Call(StrictBody):
    name: str
    input: dict[str, Any]
    task_id: str | None = None


class Ors(Protocol):
    """The HTTP interface of ORS (Open Reward Standard) on an episode server: clients play episodes of air's
    tasks by calling tools."""

    name = "ors"

    def __init__(self, server: EpisodesServer) -> None:
        self._server = server
        self._sessions = Sessions(server)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        reaper = asyncio.create_task(self._sessions.reap())
        try:
            yield
        finally:
            await cancel_and_wait(reaper)
            await self._sessions.close()

    @property
    def sessions(self) -> int:
        """The number of sessions (episodes of clients) that the server holds, including those whose episode
        has ended."""
        return self._sessions.count

    def routes(self) -> Sequence[BaseRoute]:
        roots: dict[str, Handler] = {
            "/create_session": self._create_session,
            "/create": self._create,
            "/ping": self._ping,
            "/delete": self._delete,
            "/delete_session": self._delete,
        }
        named: list[tuple[str, Handler, str]] = [
            ("GET", self._tools, "/tools"),
            ("GET", self._task_tools, "/task_tools"),
            ("GET", self._prompt, "/prompt"),
            ("POST", self._call, "/call"),
        ]
        return [
            Route("/version", answering(self._version)),
            *(Route(path, answering(each), methods=["POST"]) for path, each in roots.items()),
            *(
                Route(prefix + path, answering(each), methods=[method])
                for method, each, path in named
                for prefix in PREFIXES
            ),
            *task_routes.routes(self._server, PREFIXES),
        ]

    async def _version(self, _: Request) -> dict[str, str]:
        return {"version": version("air-agent")}

    async def _create_session(self, _: Request) -> Response:
        session_id = self._sessions.new_id()

        async def stream() -> AsyncIterator[str]:
            yield events.event("task_id", session_id)
            yield events.event("end", "")

        return events.stream(stream())

    async def _create(self, request: Request) -> dict[str, str]:
        wanted = await task_routes.body(request, _Create, self._server.config.max_body_mb)
        if wanted.env_name not in (None, NAME):
            raise Refused(404, f"unknown environment {wanted.env_name!r}: it is {NAME!r}")
        if wanted.toolset_name is not None:
            raise Refused(400, f"there is no toolset {wanted.toolset_name!r}")
        task, seed = self._sessions.chosen(wanted.task_spec, wanted.split, wanted.index)
        session_id = _id(request)
        await self._sessions.create(session_id, task, seed)
        return {"sid": session_id}

    async def _ping(self, request: Request) -> dict[str, str]:
        if self._session(request).episode.failed:
            raise Refused(410, "the server failed, or the time of the episode was over")
        return {"status": "ok"}

    async def _delete(self, request: Request) -> dict[str, str]:
        session_id = _id(request)
        await self._sessions.delete(session_id)
        return {"sid": session_id}

    async def _tools(self, request: Request) -> dict[str, Any]:
        check(request)
        tools = {
            each["function"]["name"]: each
            for task in self._server.catalogue.tasks.values()
            for each in task.tools
        }
        return _described(list(tools.values()))

    async def _task_tools(self, request: Request) -> dict[str, Any]:
        check(request)
        return _described(self._session(request).episode.task.tools)

    async def _prompt(self, request: Request) -> list[dict[str, Any]]:
        check(request)
        return [{"type": "text", "text": self._session(request).prompt, "detail": None}]

    async def _call(self, request: Request) -> Response:
        check(request)
        session = self._session(request)
        wanted = await task_routes.body(request, _Call, self._server.config.max_body_mb)
        task_id = wanted.task_id or session.call(wanted.name, wanted.input)
        call = session.find(task_id)
        if call is not None:
            return events.stream(events.of_call(task_id, call))

        async def unknown() -> AsyncIterator[str]:
            yield events.event("error", "unknown task_id")

        return events.stream(unknown())

    def _session(self, request: Request) -> Session:
        return self._sessions.find(_id(request))


def _id(request: Request) -> str:
    session_id = request.headers.get("x-session-id", "").strip()
    if not session_id:
        raise Refused(400, "X-Session-ID header is required")
    return session_id


def _described(tools: Sequence[Schema]) -> dict[str, Any]:
    """Converts descriptions of tools from OpenAI's form to the response with which ORS (Open Reward Standard)
    lists an episode's tools: `{"tools": [{"name", "description", "input_schema"}, …], …}`."""
    functions = [each["function"] for each in tools]
    return {
        "tools": [
            {
                "name": each["name"],
                "description": each.get("description", ""),
                "input_schema": each.get("parameters"),
            }
            for each in functions
        ],
        "terminal_tool": None,
        "supports_score_group": False,
    }
