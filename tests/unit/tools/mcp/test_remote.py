"""Remote MCP servers: real ones over HTTP, the hosts that clients reach, and whose fault a failure is."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Literal

import pytest
import uvicorn
from mcp.server.mcpserver import MCPServer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from air.errors import InfrastructureError
from air.tools.mcp.remote import RemoteChannel
from air.tools.mcp.server import ATTEMPTS, Answer, Server, serving
from tests.unit.tools.mcp.notes_server import server as notes_server
from tests.until import until

LONG = 120.0
Kind = Literal["streamable-http", "sse"]
KINDS: tuple[Kind, ...] = ("streamable-http", "sse")


class Served:
    """An application at a loopback port, which can be stopped and started anew at the same port."""

    def __init__(self, app: Callable[[], Any]) -> None:
        self._app = app
        self.port = 0

    async def start(self) -> None:
        config = uvicorn.Config(self._app(), port=self.port, log_level="critical")
        self._server = uvicorn.Server(config)
        self._task = asyncio.create_task(self._server.serve())
        await until(lambda: self._server.started)
        self.port = self._server.servers[0].sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.should_exit = self._server.force_exit = True
        await self._task


@contextlib.asynccontextmanager
async def served(app: Callable[[], Any]) -> AsyncIterator[Served]:
    one = Served(app)
    await one.start()
    try:
        yield one
    finally:
        await one.stop()


def real(kind: Kind) -> Callable[[], Starlette]:
    def app() -> Starlette:
        server: MCPServer[Any] = notes_server()
        return server.sse_app() if kind == "sse" else server.streamable_http_app()

    return app


def client(one: Served, kind: Kind = "streamable-http", **settings: Any) -> Server:
    path = "sse" if kind == "sse" else "mcp"
    url = f"http://localhost:{one.port}/{path}"
    settings = {"hosts": [f"localhost:{one.port} private"], **settings}
    patience = settings.pop("patience", 0.0)
    channel = RemoteChannel(settings.pop("url", url), transport=kind, **settings)
    return Server("notes", channel, start_seconds=LONG, pause_seconds=0.0, patience=patience)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_real_server(kind: Kind) -> None:
    async with served(real(kind)) as one, serving(client(one, kind)) as notes:
        assert "add" in [tool.name for tool in await notes.tools()]
        answer = await notes.call("add", {"text": "a"}, LONG)
        assert not answer.error
        assert answer.text.endswith("a")
        assert (await notes.call("fail", {"reason": "no luck"}, LONG)).error
        assert (await notes.call("picture", {}, LONG)).text.startswith("[image (image/png")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("hosts", "why"),
    [
        (["localhost:{port}"], "not public"),
        (["localhost:1 private"], "may reach only"),
        (["*"], "may reach only|not public"),
        ([], "may reach only"),
    ],
)
async def test_a_client_reaches_only_its_hosts(kind: Kind, hosts: list[str], why: str) -> None:
    async with served(real(kind)) as one:
        entries = [host.format(port=one.port) for host in hosts]
        with pytest.raises(InfrastructureError, match=why):
            async with serving(client(one, kind, hosts=entries)):
                pass


@pytest.mark.parametrize("kind", KINDS)
async def test_a_server_that_is_away_is_a_failure(kind: Kind) -> None:
    async with served(real(kind)) as one, serving(client(one, kind)) as notes:
        await one.stop()
        with pytest.raises(
            InfrastructureError,
            match=r"the MCP server 'notes' cannot be used: .+ \(the last connection ended: .+\)",
        ):
            await notes.call("add", {"text": "a"}, LONG)
        await one.start()
        assert not (await notes.call("add", {"text": "a"}, LONG)).error


@pytest.mark.parametrize("kind", KINDS)
async def test_a_server_that_restarted_is_asked_anew(kind: Kind) -> None:
    async with served(real(kind)) as one, serving(client(one, kind)) as notes:
        await one.stop()
        await one.start()
        first = await notes.call("add", {"text": "a"}, LONG)  # it may not know the old session
        assert not first.error or "no result" in first.text
        assert not (await notes.call("add", {"text": "a"}, LONG)).error


@pytest.mark.parametrize("kind", KINDS)
async def test_a_call_that_takes_too_long_is_the_models_if_the_server_is_there(kind: Kind) -> None:
    app = MCPServer("slow", log_level="ERROR")

    @app.tool()
    async def wait() -> str:
        """Waits."""
        await asyncio.sleep(10_000)
        return "done"

    def make() -> Starlette:
        return app.sse_app() if kind == "sse" else app.streamable_http_app()

    async with served(make) as one, serving(client(one, kind)) as slow:
        answer = await slow.call("wait", {}, 0.3)
        assert answer == Answer("[notes: no result: it did not answer within 0.3 s]", error=True)


async def test_a_call_that_crashes_a_server_is_the_models_if_it_comes_back() -> None:
    """As behind a reverse proxy, which answers 502 until the server has been started again."""
    down = 0

    async def handle(request: Request) -> Response:
        nonlocal down
        message = await request.json() if request.method == "POST" else {}
        if message.get("method") == "tools/call":
            down = 3 * ATTEMPTS
        if down:
            down -= message.get("method") == "initialize"
            return Response(status_code=502)
        return await begun(request, message)

    app = Starlette(routes=[Route("/mcp", handle, methods=["GET", "POST", "DELETE"])])
    async with served(lambda: app) as one, serving(client(one, patience=LONG)) as server:
        answer = await server.call("crash", {}, LONG)
        assert answer == Answer("[notes: no result: HTTP status 502 Bad Gateway]", error=True)
        assert down == 0


Handler = Callable[[Request, dict[str, Any]], Awaitable[Response]]


def by_hand(on_call: Handler) -> Callable[[], Starlette]:
    """A server that begins well; `on_call` answers calls of tools."""

    async def handle(request: Request) -> Response:
        message = await request.json() if request.method == "POST" else {}
        if message.get("method") == "initialize" or "id" not in message:
            return await begun(request, message)
        return await on_call(request, message)

    routes = [Route("/mcp", handle, methods=["GET", "POST", "DELETE"])]
    return lambda: Starlette(routes=routes)


async def begun(request: Request, message: dict[str, Any]) -> Response:
    """What a server answers before calls."""
    if request.method != "POST":
        return Response(status_code=405)
    if message.get("method") != "initialize":
        return Response(status_code=202)
    version = message["params"]["protocolVersion"]
    info = {"name": "by hand", "version": "1"}
    result = {"protocolVersion": version, "capabilities": {}, "serverInfo": info}
    return result_of(message, result)


def result_of(message: dict[str, Any], result: Any) -> Response:
    import json

    body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result})
    return Response(body, media_type="application/json")


GOOD = {"content": [{"type": "text", "text": "good"}]}


async def call(on_call: Handler) -> Answer:
    async with served(by_hand(on_call)) as one, serving(client(one)) as server:
        answer = await server.call("any", {}, LONG)
        return answer


async def test_an_answer_that_is_too_large_is_the_models() -> None:
    async def huge(request: Request, message: dict[str, Any]) -> Response:
        async def body() -> AsyncIterator[bytes]:
            for _ in range(100):
                yield b" " * 1_000_000

        return StreamingResponse(body(), media_type="application/json")

    answer = await call(huge)
    assert answer.error
    assert "it sent more than 16 MiB in one call" in answer.text


async def test_compressed_answers_are_not_unpacked() -> None:
    async def bomb(request: Request, message: dict[str, Any]) -> Response:
        assert request.headers["accept-encoding"] == "identity"
        packed = gzip.compress(b" " * 50_000_000)
        return Response(packed, media_type="application/json", headers={"content-encoding": "gzip"})

    answer = await call(bomb)
    assert answer.error
    assert "compresses" in answer.text


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
async def test_statuses_of_refusals(status: int) -> None:
    async def refuse(request: Request, message: dict[str, Any]) -> Response:
        return Response("no", status_code=status)

    answer = await call(refuse)
    assert answer.error
    assert str(status) in answer.text


@pytest.mark.parametrize(
    "body",
    [b"", b"no JSON", b"[]", b'{"jsonrpc": "2.0", "id": 99, "result": {}}', b"[" * 100_000],
)
async def test_answers_that_are_none(body: bytes) -> None:
    async def garbage(request: Request, message: dict[str, Any]) -> Response:
        return Response(body, media_type="application/json")

    async with served(by_hand(garbage)) as one, serving(client(one)) as server:
        answer = await server.call("any", {}, 1.0)
        assert answer.error


async def test_redirects_stay_at_the_same_origin() -> None:
    seen: list[str] = []

    async def elsewhere(request: Request, message: dict[str, Any]) -> Response:
        return result_of(message, GOOD)

    def redirecting(target: str) -> Callable[[], Starlette]:
        async def handle(request: Request) -> Response:
            seen.append(request.headers.get("x-secret", ""))
            return RedirectResponse(target, status_code=307)

        return lambda: Starlette(routes=[Route("/mcp", handle, methods=["POST"])])

    async with served(by_hand(elsewhere)) as other, served(redirecting("")) as first:
        target = f"http://localhost:{other.port}/mcp"
        async with served(redirecting(target)) as one:
            hosts = [f"localhost:{one.port} private", f"localhost:{other.port} private"]
            server = client(one, hosts=hosts, headers={"X-Secret": "key"})
            with pytest.raises(InfrastructureError, match="redirects to another host"):
                async with serving(server):
                    pass
        assert first.port
    assert seen


async def test_a_redirect_to_another_path_is_followed() -> None:
    async def good(request: Request, message: dict[str, Any]) -> Response:
        return result_of(message, GOOD)

    async def handle(request: Request) -> Response:
        return RedirectResponse("/mcp", status_code=307)

    def app() -> Starlette:
        there = by_hand(good)()
        return Starlette(routes=[*there.routes, Route("/old", handle, methods=["POST"])])

    async with served(app) as one:
        url = f"http://localhost:{one.port}/old"
        async with serving(client(one, url=url)) as server:
            assert await server.call("any", {}, LONG) == Answer("good")


@pytest.mark.parametrize("own", ["", "mine=1"])
async def test_cookies_of_a_server_are_not_sent_back(own: str) -> None:
    seen: list[str | None] = []

    async def show(request: Request, message: dict[str, Any]) -> Response:
        seen.append(request.headers.get("cookie"))
        response = result_of(message, GOOD)
        response.set_cookie("mcp-session-id", "other")
        return response

    headers = {"Cookie": own} if own else {}
    async with served(by_hand(show)) as one, serving(client(one, headers=headers)) as server:
        for _ in range(2):
            assert await server.call("any", {}, LONG) == Answer("good")
    assert seen == [own or None] * 2


async def test_headers_are_sent() -> None:
    async def show(request: Request, message: dict[str, Any]) -> Response:
        return result_of(message, {"content": [{"type": "text", "text": request.headers["x-key"]}]})

    async with (
        served(by_hand(show)) as one,
        serving(client(one, headers={"X-Key": "value"})) as server,
    ):
        assert await server.call("any", {}, LONG) == Answer("value")
