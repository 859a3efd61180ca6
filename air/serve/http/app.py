"""The HTTP application that all servers of `air serve` share: it checks the token and the host's name, logs
and counts requests, answers `/health` and `/metrics`, and turns errors into HTTP responses.

A protocol, such as SandboxFusion's, is a subclass of `Protocol`. The argument of its constructor is the
server's state: a `BaseServer` or a subclass. In a sandbox server it is a `Server`, which also holds the boxes
(containers in which clients' code runs).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, ClassVar

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from air import origin_check
from air.aio import ClientLeft
from air.serve.http import token
from air.serve.http.bodies import Bodies, Body, BodyRefused
from air.serve.http.boxes import Boxes
from air.serve.http.log import Log
from air.serve.http.metrics import Metrics
from air.serve.http.settings import HEALTHY, ListenConfig, ServeConfig

LOG_FIELDS = "air.log_fields"
"""The key of a dict in each request's ASGI scope. A protocol can add fields to this dict. They appear in the
line about this request in the server's log."""
_OPEN_PATHS = ("/health",)
"""Paths that clients may request without the server's token, for monitoring programs. Without the token, the
response contains no details of the server."""

_CLIENT_CLOSED = 499
"""The HTTP status that the log records for a request if its client disconnected before the response began."""


@dataclass(frozen=True)
class BaseServer:
    """The state that all protocols (HTTP interfaces) of one server share: settings, metrics and log."""

    config: ListenConfig
    metrics: Metrics
    log: Log
    healthy: ClassVar[str] = HEALTHY
    """The value of the field `status` in the response of `/health`. It is constant, because a server that
    responds is healthy."""

    def health_fields(self) -> dict[str, Any]:
        """Returns fields with facts about this server, which `/health` shows in its response, as a dict by
        name. The base class has none."""
        return {}


@dataclass(frozen=True)
class Server(BaseServer):
    """The state that the protocols of a sandbox server (SandboxFusion's and E2B's) share: settings, metrics,
    log, and the boxes (containers) in which clients' code runs."""

    config: ServeConfig
    boxes: Boxes

    def health_fields(self) -> dict[str, Any]:
        boxes = self.boxes
        counts = {
            "live": boxes.pool.stats.live,
            "lent": boxes.lent,
            "max": boxes.max_boxes,
            "queued": boxes.queued,
        }
        return {"image": self.config.image, "boxes": counts}


class Protocol(ABC):
    """Base class of an HTTP interface, such as E2B's, that a server offers. A subclass has the interface's
    routes, its state, and its work in the background."""

    name: str
    domain_option: ClassVar[str] = ""
    """The flag of `air serve`, such as `--domain`, with which a user sets the domains that the method
    `domains` returns. Empty if there is no such flag."""

    @abstractmethod
    def routes(self) -> Sequence[BaseRoute]:
        """Returns the protocol's HTTP routes. Different protocols of one server must not have the same
        path."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Async context manager that the server keeps open while it accepts requests. A subclass overrides it
        to do the protocol's background work during the block. The block ends before the server's boxes
        (containers) are closed. Raises AirError on entry if the protocol cannot be served on this machine."""
        yield

    def health_fields(self) -> dict[str, Any]:
        """Returns fields with facts about this protocol, which `/health` shows in its response, as a dict by
        name. The base class has none."""
        return {}

    def domains(self) -> Sequence[str]:
        """Returns the domains that clients may use in the request header `Host`, in addition to the names of
        this machine; a user sets them, for instance with `--domain`. A server without a token refuses
        requests with any other `Host`, because they may come from a web page of another site."""
        return ()

    def checks_own_token(self, scope: Scope) -> bool:
        """Returns whether the protocol itself protects this request by a secret, such as the token of one
        sandbox, which it checks later. Then the server does not demand its own token."""
        return False

    def sandbox_app(self, scope: Scope) -> ASGIApp | None:
        """Returns the ASGI application that must handle this request if it is addressed to one sandbox, for
        instance by the host name, whatever its path is. Returns None for all other requests; the server's
        routes handle these."""
        return None


def application(server: BaseServer, protocols: Sequence[Protocol]) -> Starlette:
    """Returns the ASGI application that serves `/health`, `/metrics` and the routes of `protocols`."""

    async def health(request: Request) -> Response:
        body: dict[str, Any] = {"status": server.healthy}
        if server.config.token and not token.carries(request.headers, server.config.token):
            return JSONResponse(body)
        body |= {"version": version("air-agent")} | server.health_fields()
        return JSONResponse(body | {each.name: each.health_fields() for each in protocols})

    async def metrics(_: Request) -> Response:
        return PlainTextResponse(
            server.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8"
        )

    routes: list[BaseRoute] = [Route("/health", health), Route("/metrics", metrics)]
    for each in protocols:
        routes += each.routes()

    async def not_read(_: Request, error: Exception) -> Response:
        assert isinstance(error, BodyRefused)
        return _refused(error.status, error.text)

    async def not_served(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        text = f"air does not serve {request.method} {request.url.path}"
        response = _refused(error.status_code, text)
        response.headers.update(error.headers or {})  # the methods that a path has
        return response

    handlers = {BodyRefused: not_read, HTTPException: not_served}
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.add_middleware(_Guard, server=server, protocols=protocols)
    return app


class _Guard:
    """ASGI middleware that checks, logs and counts every request. If the server has a token, it rejects
    requests without this token; otherwise, it rejects requests that may come from a web page of another site.
    It always rejects requests whose body is too large, except those for one sandbox, which can stream."""

    def __init__(self, app: ASGIApp, server: BaseServer, protocols: Sequence[Protocol]) -> None:
        self._app, self._server, self._protocols = app, server, protocols
        self._bodies = Bodies(server.config, server.metrics)
        self._domains = [domain for each in protocols for domain in each.domains()]
        self._domain_options = [each.domain_option for each in protocols if each.domain_option]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        since, status = time.monotonic(), _CLIENT_CLOSED
        log_fields: dict[str, Any] = {}
        scope[LOG_FIELDS] = log_fields
        body = Body(self._bodies, receive, scope) if scope["type"] == "http" else None

        async def sent(message: Message) -> None:
            nonlocal status
            status = _status(message, status)
            await send(message)

        try:
            refusal = self._refusal(scope)
            await (refusal or self._app_for(scope))(scope, body or receive, sent)
        except (ClientLeft, ClientDisconnect):
            status = _CLIENT_CLOSED
        except BodyRefused as error:
            await _refused(error.status, error.text)(scope, receive, sent)
        except Exception:  # of any kind: it is raised again, and only recorded here
            status = 500
            raise
        finally:
            if body is not None:
                body.release()
            self._record(scope, status, time.monotonic() - since, log_fields)

    def _app_for(self, scope: Scope) -> ASGIApp:
        others = (each.sandbox_app(scope) for each in self._protocols)
        return next((app for app in others if app is not None), self._app)

    def _refusal(self, scope: Scope) -> Response | None:
        headers, config = Headers(scope=scope), self._server.config
        if not config.token:
            problem = self._foreign(scope, headers)
            if problem:
                return _refused(403, problem)
        if config.token and scope["path"] not in _OPEN_PATHS:
            admitted = any(each.checks_own_token(scope) for each in self._protocols)
            if not admitted and not token.carries(headers, config.token):
                return _refused(401, "the request carries no valid token")
        if self._app_for(scope) is not self._app:  # a sandbox: it limits or forwards what it reads
            return None
        size = headers.get("content-length", "0")
        if size.isdigit() and int(size) > config.max_body_mb * 2**20:
            return _refused(413, f"the body exceeds {config.max_body_mb:g} MiB")
        return None

    def _foreign(self, scope: Scope, headers: Headers) -> str:
        """Checks a request to a server without a token. Returns an error message if the header `Host` or
        `Origin` shows that the request may come from a web page of another site; otherwise, an empty
        string."""
        problem = origin_check.foreign_host(headers.getlist("host"), self._domains)
        if problem:
            named = "".join(f"add the name ({option}), " for option in self._domain_options)
            return f"{problem}; call it by one of these, {named}or give it a token (--token)"
        if self._app_for(scope) is not self._app:  # a sandbox has pages of its own
            return ""
        problem = origin_check.foreign_origin(headers.get("origin"))
        return f"{problem} without a token (--token)" if problem else ""

    def _record(
        self, scope: Scope, status: int, seconds: float, log_fields: dict[str, Any]
    ) -> None:
        route = scope.get("route")
        path = getattr(route, "path", None) or "other"
        metrics = self._server.metrics
        metrics.add("air_serve_requests_total", "Requests.", path=path, code=str(status))
        metrics.observe("air_serve_request_seconds", "Duration of requests.", seconds, path=path)
        self._server.log.request(scope, status, seconds, **log_fields)


def _status(message: Message, before: int) -> int:
    """Returns the HTTP status to record for a request, after the server has sent the ASGI message `message`
    in response. `before` is the status that was recorded before this message. An accepted WebSocket has the
    status 101; a refused one has the status of the refusal."""
    kind = message["type"]
    if kind in ("http.response.start", "websocket.http.response.start"):
        return int(message["status"])
    if kind == "websocket.accept":
        return 101
    # A WebSocket that is closed before it was accepted is refused by the HTTP server with this status.
    return 403 if kind == "websocket.close" and before == _CLIENT_CLOSED else before


def _refused(status: int, text: str) -> Response:
    """Returns an error response that clients of all protocols understand: SandboxFusion's clients read its
    field `detail`, and E2B's clients read `code` and `message`."""
    headers = {"Retry-After": "1"} if status == 503 else {}
    return JSONResponse({"detail": text, "code": status, "message": text}, status, headers)


async def body_of(request: Request, most: float) -> bytes:
    """Reads and returns a request's whole body. Raises ValueError if it is larger than `most` MiB, and
    ClientLeft if the client disconnects."""
    pieces, size = [], 0
    try:
        async for piece in request.stream():
            pieces.append(piece)
            size += len(piece)
            if size > most * 2**20:
                raise ValueError(f"the body exceeds {most:g} MiB")
    except ClientDisconnect:
        raise ClientLeft from None
    return b"".join(pieces)
