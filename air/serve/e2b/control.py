"""The request handlers of E2B's control plane, the API with which clients create, list, change and end
sandboxes and snapshots."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl, unquote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from air.aio import ClientLeft, while_connected
from air.errors import AirError
from air.serve.e2b import metrics, request_bodies
from air.serve.e2b.errors import ApiError, RpcError, SandboxGone
from air.serve.e2b.sandbox import Sandbox
from air.serve.e2b.sandboxes import Sandboxes
from air.serve.e2b.templates import Templates

MOST_LISTED = 100
_KEYS_SECONDS = 600.0
_LOG = logging.getLogger(__name__)
Handler = Callable[[Request], Awaitable[Response]]
Entry = tuple[float, str, dict[str, Any]]
"""An entry of a list that clients read page by page: the time of its creation (epoch seconds), its id, and
the JSON object that clients get."""


class Control:
    """The request handlers of E2B's control plane, the API that creates, lists, changes and ends sandboxes.
    `domain` is the domain of the sandboxes' addresses; if it is empty, `localhost` is used."""

    def __init__(self, sandboxes: Sandboxes, templates: Templates, domain: str) -> None:
        self._sandboxes, self._templates, self._named_domain = sandboxes, templates, domain
        self._creations: dict[str, asyncio.Task[Response]] = {}
        """The asyncio tasks that create sandboxes, by the header `Idempotency-Key` of the request. A repeated
        request with the same key gets the response of the first request, and creates no second sandbox."""

    def routes(self) -> Sequence[BaseRoute]:
        """Returns the HTTP routes of the control plane. Functions of E2B that air lacks have routes, too,
        which respond with the status 501."""
        one = "/sandboxes/{id}"
        served = [
            *(("POST", path, self.create) for path in ("/sandboxes", "/v2/sandboxes")),
            *(("GET", path, self.list) for path in ("/sandboxes", "/v2/sandboxes")),
            ("GET", one, self.get),
            ("DELETE", one, self.kill),
            *(("POST", f"{version}{one}/connect", self.connect) for version in ("", "/v2")),
            ("POST", f"{one}/resume", self.resume),
            ("POST", f"{one}/pause", self.pause),
            ("POST", f"{one}/timeout", self.set_timeout),
            ("POST", f"{one}/refreshes", self.refresh),
            ("POST", f"{one}/snapshots", self.snapshot),
            ("POST", f"{one}/fork", self.fork),
            ("GET", f"{one}/metrics", self.metrics),
            ("GET", "/snapshots", self.list_snapshots),
            ("DELETE", "/templates/{id}", self.delete_template),
            ("GET", "/templates/aliases/{id}", self.alias),
        ]
        routes: list[BaseRoute] = [
            Route(path, _answering(handler), methods=[method]) for method, path, handler in served
        ]
        unserved = _answering(_unserved)
        every = ["GET", "POST", "PUT", "PATCH", "DELETE"]
        routes += [Route(path, unserved, methods=every) for path in _UNSERVED]
        return routes

    async def create(self, request: Request) -> Response:
        """Creates a sandbox. If a request in the last 10 minutes had the same header `Idempotency-Key` and
        did not fail, returns the response of that request instead. If the request has no such header and its
        client disconnects, ends the sandbox, because nobody knows its id."""
        body = await request_bodies.body_of(request, request_bodies.NewSandbox)
        seconds = request_bodies.checked_timeout(body.timeout)
        settings = body.settings(body.templateID)

        async def create() -> Sandbox:
            return await self._sandboxes.create(settings, seconds)

        async def create_and_answer() -> Response:
            return self._answer(request, await create())

        key = request.headers.get("idempotency-key")
        if key is None:
            sandbox = await while_connected(request.receive, create)
            await self._end_if_left(request, [sandbox])
            return self._answer(request, sandbox)
        task = self._creations.get(key)
        if task is None:
            task = self._creations[key] = asyncio.create_task(create_and_answer())
            task.add_done_callback(lambda ended: self._created(key, ended))
        return await asyncio.shield(task)

    def _answer(self, request: Request, sandbox: Sandbox) -> Response:
        return JSONResponse(sandbox.created(self._domain(request)), status_code=201)

    async def _end_if_left(self, request: Request, sandboxes: Sequence[Sandbox]) -> None:
        """Ends new sandboxes and raises ClientLeft if the client of the request has disconnected, because
        then nobody knows their ids."""
        if await request.is_disconnected():
            for sandbox in sandboxes:
                await self._sandboxes.kill(sandbox)
            raise ClientLeft

    def _created(self, key: str, task: asyncio.Task[Response]) -> None:
        """Removes an ended task from `_creations`, in which its response is stored under `key`: 10 minutes
        later if the task created a sandbox; at once if it failed, so that the client may try again with the
        same key."""
        if task.cancelled() or task.exception() is not None:
            del self._creations[key]
        else:
            asyncio.get_running_loop().call_later(_KEYS_SECONDS, self._creations.pop, key)

    async def get(self, request: Request) -> Response:
        return JSONResponse(self._sandbox(request).details(self._domain(request)))

    async def kill(self, request: Request) -> Response:
        await self._sandboxes.kill(self._sandbox(request))
        return Response(status_code=204)

    async def connect(self, request: Request) -> Response:
        body = await request_bodies.body_of(request, request_bodies.Connect)
        sandbox = self._sandbox(request)
        body.refuse_unserved(sandbox)
        seconds = request_bodies.checked_timeout(body.timeout)
        resumed = await self._sandboxes.connect(sandbox, seconds)
        return JSONResponse(
            sandbox.created(self._domain(request)), status_code=201 if resumed else 200
        )

    async def resume(self, request: Request) -> Response:
        body = await request_bodies.body_of(request, request_bodies.Connect)
        sandbox = self._sandbox(request)
        body.refuse_unserved(sandbox)
        if not await self._sandboxes.connect(sandbox, request_bodies.checked_timeout(body.timeout)):
            raise ApiError(409, f"sandbox {sandbox.id} is already running")
        return JSONResponse(sandbox.created(self._domain(request)), status_code=201)

    async def pause(self, request: Request) -> Response:
        body = await request_bodies.body_of(request, request_bodies.Pause)
        body.refuse_unserved()
        await self._sandboxes.pause(self._sandbox(request), memory=body.memory)
        return Response(status_code=204)

    async def set_timeout(self, request: Request) -> Response:
        body = await request_bodies.body_of(request, request_bodies.Timeout)
        sandbox = self._sandbox(request)
        self._running(sandbox)
        self._sandboxes.set_end(sandbox, request_bodies.checked_timeout(body.timeout))
        return Response(status_code=204)

    async def refresh(self, request: Request) -> Response:
        body = await request_bodies.body_of(request, request_bodies.Refresh)
        sandbox = self._sandbox(request)
        self._running(sandbox)
        if sandbox.seconds_left < body.duration:
            self._sandboxes.set_end(sandbox, request_bodies.checked_timeout(body.duration))
        return Response(status_code=204)

    async def snapshot(self, request: Request) -> Response:
        body = await request_bodies.body_of(request, request_bodies.NewSnapshot)
        body.refuse_unserved()
        kept = await self._sandboxes.snapshot(self._sandbox(request), body.name)
        return JSONResponse(kept.body, status_code=201)

    async def fork(self, request: Request) -> Response:
        body = await request_bodies.body_of(request, request_bodies.Fork)
        seconds = request_bodies.checked_timeout(body.timeout)
        forks = await self._sandboxes.fork(self._sandbox(request), body.count, seconds)
        await self._end_if_left(request, [one for one in forks if isinstance(one, Sandbox)])
        results = [
            {"error": {"code": one.status, "message": str(one)}}
            if isinstance(one, ApiError)
            else {"sandbox": one.created(self._domain(request))}
            for one in forks
        ]
        return JSONResponse(results, status_code=201)

    async def metrics(self, request: Request) -> Response:
        sandbox = self._sandbox(request)
        start, end = (
            _number(request, name, default) for name, default in (("start", 0), ("end", 1 << 40))
        )
        return JSONResponse(await metrics.between(sandbox, start, end))

    async def list(self, request: Request) -> Response:
        """Handles the request for a list of sandboxes. Returns one page of those that meet the filters in the
        query, by default newest first. `GET /sandboxes` lists only running sandboxes; `GET /v2/sandboxes`
        also lists paused ones."""
        query = request.query_params
        states = set(",".join(query.getlist("state")).split(",")) - {""}
        if not request.url.path.startswith("/v2"):
            states = {"running"}
        wanted = dict(parse_qsl(unquote(query.get("metadata", "")), keep_blank_values=True))
        template, after = query.get("template"), _time(query.get("startedAfter"))
        sandboxes = [
            sandbox
            for sandbox in self._sandboxes.all()
            if (not states or sandbox.state in states)
            and wanted.items() <= sandbox.settings.metadata.items()
            and template in (None, sandbox.settings.template)
            and round(sandbox.started_at, 6) >= after
        ]
        entries = [(sandbox.started_at, sandbox.id, sandbox.listed()) for sandbox in sandboxes]
        return _page(request, entries, newest_first=query.get("order") != "asc")

    async def list_snapshots(self, request: Request) -> Response:
        query = request.query_params
        kept = [
            snapshot
            for snapshot in self._sandboxes.snapshots.values()
            if query.get("sandboxID") in (None, snapshot.source.id)
            and query.get("name") in (None, snapshot.name)
        ]
        entries = [(snapshot.created_at, snapshot.id, snapshot.body) for snapshot in kept]
        return _page(request, entries, newest_first=True)

    async def delete_template(self, request: Request) -> Response:
        await self._sandboxes.delete_snapshot(request.path_params["id"])
        return Response(status_code=204)

    async def alias(self, request: Request) -> Response:
        name = request.path_params["id"]
        await self._templates.image(name)
        return JSONResponse({"templateID": name, "public": False})

    def _domain(self, request: Request) -> str:
        """Returns the domain for the addresses of ports in sandboxes, such as `localhost:8080`. A client
        reaches a port at `PORT-ID.DOMAIN`, where ID is the sandbox's id."""
        port = request.url.port
        return self._named_domain or ("localhost" + (f":{port}" if port else ""))

    def _sandbox(self, request: Request) -> Sandbox:
        return self._sandboxes.find(request.path_params["id"])

    @staticmethod
    def _running(sandbox: Sandbox) -> None:
        if sandbox.state != "running":
            raise ApiError(409, f"sandbox {sandbox.id} is paused: connect to it first")


_UNSERVED = [
    *("/teams", "/teams/{rest:path}", "/nodes", "/nodes/{rest:path}", "/admin/{rest:path}"),
    *("/access-tokens", "/access-tokens/{rest:path}", "/api-keys", "/api-keys/{rest:path}"),
    *("/volumes", "/volumes/{rest:path}", "/secrets", "/secrets/{rest:path}"),
    *("/templates", "/templates/{rest:path}", "/v2/templates", "/v2/templates/{rest:path}"),
    *("/v3/templates", "/sandboxes/metrics", "/sandboxes/{id}/logs", "/v2/sandboxes/{id}/logs"),
    "/sandboxes/{id}/network",
]


async def _unserved(request: Request) -> Response:
    what = f"{request.method} {request.url.path}"
    hint = ""
    if "templates" in request.url.path:
        hint = ": templates are images of this machine, which `air images build` or `docker build` makes"
    raise ApiError(501, f"air does not serve {what}{hint}")


def _answering(handler: Handler) -> Handler:
    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except RpcError as error:
            return ApiError(500, str(error)).response()
        except SandboxGone as error:
            return ApiError(404, f"sandbox {error.sandbox_id!r} not found").response()
        except ApiError as error:
            return error.response()
        except AirError as error:
            _LOG.warning("%s %s: %s", request.method, request.url.path, error)
            return ApiError(500, str(error)).response()

    return answer


def _page(request: Request, entries: Iterable[Entry], *, newest_first: bool) -> Response:
    """Returns one page of `entries`, in the order of their creation, as a response with a JSON list.

    The query parameter `limit` is the maximum number of entries on the page, by default and at most 100. The
    page begins after the place that the query parameter `nextToken` names. If a next page exists, the
    response header `X-Next-Token` has the value of `nextToken` for it. A place is a time and an id, so it
    remains valid if the entry there ends meanwhile.
    """
    limit = min(max(1, _number(request, "limit", MOST_LISTED)), MOST_LISTED)
    rest = sorted(entries, key=lambda entry: entry[:2], reverse=newest_first)
    if token := request.query_params.get("nextToken"):
        after = _place(token)
        rest = [
            entry for entry in rest if entry[:2] != after and (entry[:2] < after) == newest_first
        ]
    page, headers = rest[:limit], {}
    if len(rest) > limit:
        place = f"{page[-1][0]!r} {page[-1][1]}"
        headers["X-Next-Token"] = base64.urlsafe_b64encode(place.encode()).decode()
    return JSONResponse([body for _, _, body in page], headers=headers)


def _place(token: str) -> tuple[float, str]:
    try:
        seconds, _, ident = base64.urlsafe_b64decode(token).decode().partition(" ")
        return float(seconds), ident
    except ValueError:
        raise ApiError(400, "nextToken: no list of this server has it") from None


def _number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise ApiError(400, f"{name}: {text!r} is not a number of at most 18 digits")
    return int(text)


def _time(text: str | None) -> float:
    if text is None:
        return 0.0
    try:
        return datetime.fromisoformat(text.replace(" ", "+")).timestamp()
    except ValueError:
        raise ApiError(400, f"startedAfter: {text!r} is not a time") from None
