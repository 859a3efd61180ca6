"""Serves E2B's HTTP interface as one protocol of the sandbox server: decides which sandbox and which service
each request is for.

A request is for a sandbox if its headers name one (`E2b-Sandbox-Id` and `E2b-Sandbox-Port`), if its `Host` is
`PORT-ID.DOMAIN`, or if it requests `/files` with a sandbox's signature in the URL. The port number then
decides which service handles the request: envd (E2B's program in a sandbox), the code interpreter, or a
program in the sandbox. All other requests go to the control plane, the API that manages sandboxes.
"""

from __future__ import annotations

import hmac
import logging
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from air.errors import AirError
from air.serve.e2b import interpreter, ports
from air.serve.e2b.control import Control
from air.serve.e2b.envd import files, filesystem, processes
from air.serve.e2b.errors import ApiError, RpcError, SandboxGone
from air.serve.e2b.sandbox import Sandbox
from air.serve.e2b.sandboxes import Sandboxes
from air.serve.e2b.templates import Templates
from air.serve.http.app import Protocol, Server

ENVD_PORT, INTERPRETER_PORT = 49983, 49999
_HOST = re.compile(r"(\d{1,5})-([a-z0-9]{1,40})\.")
_LOG = logging.getLogger(__name__)
_RESUMED_SECONDS = 300
"""The timeout, in seconds, that a paused sandbox gets if a request to one of its ports resumes it. E2B uses
the same value."""


class Target(NamedTuple):
    """The sandbox and the port that a request is for. `sandbox_id` is empty if the request names no sandbox,
    but has a signature in its URL; the signature then shows which sandbox is meant."""

    sandbox_id: str
    port: int


class E2B(Protocol):
    """E2B's HTTP interface on a sandbox server, for E2B's own clients: the control plane (the API that
    manages sandboxes), and the services of each sandbox."""

    name = "e2b"
    domain_option = "--domain"

    def __init__(self, server: Server) -> None:
        self._templates = Templates(server.config.limits, server.boxes.pool.digests)
        self._sandboxes = Sandboxes(server, self._templates)
        self._control = Control(self._sandboxes, self._templates, server.config.domain)
        self._domain = server.config.domain
        gauge, sandboxes = server.metrics.gauge, self._sandboxes
        gauge("air_serve_sandboxes", "E2B's sandboxes.", lambda: len(sandboxes.all()))
        gauge(
            "air_serve_sandboxes_paused",
            "Paused sandboxes that hold a box.",
            lambda: sandboxes.paused()[0],
        )
        gauge(
            "air_serve_snapshots",
            "Snapshots that take room on the disk.",
            lambda: sandboxes.paused()[1] + len(sandboxes.snapshots),
        )

    def routes(self) -> Sequence[BaseRoute]:
        return self._control.routes()

    def health_fields(self) -> dict[str, Any]:
        return {
            "sandboxes": len(self._sandboxes.all()),
            "snapshots": len(self._sandboxes.snapshots),
        }

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await self._sandboxes.close()

    def domains(self) -> Sequence[str]:
        return [self._domain] if self._domain else []

    def checks_own_token(self, scope: Scope) -> bool:
        return target_of(scope) is not None

    def sandbox_app(self, scope: Scope) -> ASGIApp | None:
        return None if target_of(scope) is None else self._serve

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        target = target_of(scope)
        assert target is not None
        request = Request(scope, receive) if scope["type"] == "http" else None
        try:
            sandbox = self._find(target, request)
            await self._wake(sandbox, target, scope["path"])
            sandbox.running_box  # noqa: B018 — raises if it has ended
            if target.port not in (ENVD_PORT, INTERPRETER_PORT):
                _check_traffic(sandbox, scope)
                await ports.serve(sandbox, target.port, scope, receive, send)
                return
            if request is None:
                raise ApiError(404, "air serves no WebSocket there")
            answer = await self._own(sandbox, target.port, request)
        except (ApiError, RpcError, SandboxGone) as error:
            answer = error.response()
        except AirError as error:
            _LOG.warning("sandbox %s: %s", target.sandbox_id, error)
            answer = ApiError(500, str(error)).response()
        if request is None:
            await send({"type": "websocket.close", "code": 1008})
        else:
            await answer(scope, receive, send)

    def _find(self, target: Target, request: Request | None) -> Sandbox:
        try:
            if target.sandbox_id:
                return self._sandboxes.find(target.sandbox_id)
        except ApiError:
            raise SandboxGone(target.sandbox_id) from None
        for sandbox in self._sandboxes.all():
            if request is not None and files.signed(request, sandbox):
                return sandbox
        raise ApiError(401, "invalid signature")

    async def _wake(self, sandbox: Sandbox, target: Target, path: str) -> None:
        """Resumes the sandbox if it is paused with its processes, and if the client that created it set
        `autoResume`. A health check (`path` is `/health`, and the port is envd's) does not resume it."""
        if sandbox.state == "running" or not sandbox.settings.resume_on_traffic:
            return
        if (target.port, path) != (ENVD_PORT, "/health") and sandbox.frozen_files is None:
            await self._sandboxes.connect(sandbox, _RESUMED_SECONDS)

    async def _own(self, sandbox: Sandbox, port: int, request: Request) -> Response:
        path = request.url.path
        if path == "/health" and port == ENVD_PORT:
            return Response(status_code=204)
        if port == INTERPRETER_PORT:
            if path == "/execute":
                _check_token(sandbox, request)
            _check_traffic(sandbox, request.scope)
            return await interpreter.serve(sandbox, request)
        if path == "/files":
            if "x-access-token" not in request.headers and files.signed(request, sandbox):
                files.check_expiration(request)
            else:
                _check_token(sandbox, request)
            return await files.files(sandbox, request)
        return await _call(sandbox, request, path)


async def _call(sandbox: Sandbox, request: Request, path: str) -> Response:
    """Handles one remote call to envd (E2B's program in a sandbox), and returns the response. Raises RpcError
    if the request lacks the sandbox's token or the call does not exist, and ApiError if air does not support
    the service."""
    if not _has_token(sandbox, request):
        raise RpcError(
            "unauthenticated", "unauthorized access, please provide a valid access token"
        )
    service, _, name = path.removeprefix("/").partition("/")
    calls = {"process.Process": processes.CALLS, "filesystem.Filesystem": filesystem.CALLS}
    call = calls.get(service, {}).get(name)
    if call is None or request.method != "POST":
        if service in ("metrics", "envs", "init", "freeze", "unfreeze"):
            raise ApiError(501, f"air does not serve envd's {path}")
        raise RpcError("unimplemented", f"air does not serve {request.method} {path}")
    answer: Response = await call(sandbox, request)
    return answer


def target_of(scope: Scope) -> Target | None:
    """Returns the sandbox and the port that a request is for, from its headers `E2b-Sandbox-…` or its `Host`;
    for a request for `/files` with a signature, an empty sandbox id and the port of envd. Returns None for
    all other requests, which are for the control plane, the API that manages sandboxes."""
    headers = Headers(scope=scope)
    if ident := headers.get("e2b-sandbox-id"):
        return Target(ident, _port(headers.get("e2b-sandbox-port", str(ENVD_PORT))))
    if match := _HOST.match(headers.get("host", "")):
        return Target(match[2], _port(match[1]))
    if scope["path"] == "/files" and b"signature=" in scope.get("query_string", b""):
        return Target("", ENVD_PORT)
    return None


def _port(text: str) -> int:
    """Converts `text` to a port number. If it is not a valid one, returns 0, on which no program can
    listen."""
    port = int(text) if re.fullmatch(r"[0-9]{1,5}", text) else 0
    return port if port < 1 << 16 else 0


def _has_token(sandbox: Sandbox, request: Request) -> bool:
    given = request.headers.get("x-access-token", "")
    return hmac.compare_digest(given.encode(), sandbox.token.encode())


def _check_token(sandbox: Sandbox, request: Request) -> None:
    if not _has_token(sandbox, request):
        raise ApiError(401, "unauthorized access, please provide a valid access token or signature")


def _check_traffic(sandbox: Sandbox, scope: Scope) -> None:
    """Raises ApiError if a token protects the sandbox's ports, and the request does not have this token in
    the header `E2b-Traffic-Access-Token`."""
    given = Headers(scope=scope).get("e2b-traffic-access-token", "")
    if sandbox.traffic_token and not hmac.compare_digest(
        given.encode(), sandbox.traffic_token.encode()
    ):
        raise ApiError(403, "the ports of this sandbox need its traffic access token")
