"""What a server tells whom: a request for another host's name, and one for its health without the token."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from typing import Any

import httpx
import pytest
import uvicorn
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from air.serve.e2b.protocol import E2B
from air.serve.episodes.catalogue import catalogue
from air.serve.episodes.server import ClientLimit, EpisodesServer
from air.serve.episodes.settings import EpisodesConfig
from air.serve.fusion.protocol import Fusion
from air.serve.http.app import BaseServer, Protocol, Server
from air.serve.http.boxes import Boxes
from air.serve.http.log import Log
from air.serve.http.metrics import Metrics
from air.serve.http.server import bind, http_config, url
from air.serve.http.settings import ServeConfig
from air.serve.openenv.protocol import OpenEnv
from air.serve.ors.protocol import Ors
from air.serve.rollouts import server as rollouts
from air.serve.rollouts.settings import RolloutsConfig
from air.serve.tools import server as tools_server
from air.serve.tools.chat import Chat
from air.serve.tools.completions import Completions
from air.serve.tools.settings import ToolsConfig
from air.serve.tools.verl_tool_protocol import Observations
from tests.until import until

Opened = tuple[BaseServer, Sequence[Protocol]]
TOKEN = "a-secret-of-the-test"
TASK = "game:tetris1"
OWN = (
    "localhost",
    "LOCALHOST:1",
    "127.0.0.1",
    "127.8.9.1:80",
    "[::1]:80",
    "a.localhost",
    "localhost.",
)
FOREIGN = (
    *("example.com", "example.com:80", "127.0.0.1.example.com", "localhost.example.com", "0.0.0.0"),
    *("192.168.0.1", "[2001:db8::1]:80", "localhost@example.com", "[", "", "notlocalhost"),
)


@asynccontextmanager
async def tools(**settings: Any) -> AsyncIterator[Opened]:
    model = {"model": "secret-model", "model_url": "http://127.0.0.1:9/v1"}
    config = ToolsConfig(tools=("calculator",), **model, **settings)
    async with tools_server.opened(config, Metrics(), Log(io.StringIO())) as server:
        yield server, [Observations(server), Chat(server), Completions(server)]


@asynccontextmanager
async def episodes(
    protocol: Callable[[EpisodesServer], Protocol], **settings: Any
) -> AsyncIterator[Opened]:
    config, metrics = EpisodesConfig(tasks=(TASK,), **settings), Metrics()
    async with catalogue(config) as offered:
        client_limit = ClientLimit(config.max_sessions, metrics)
        server = EpisodesServer(config, metrics, Log(io.StringIO()), offered, client_limit)
        yield server, [protocol(server)]


@asynccontextmanager
async def sandbox(**settings: Any) -> AsyncIterator[Opened]:
    """Starts no box: no request of these tests comes so far."""
    config, metrics = ServeConfig(**settings), Metrics()
    server = Server(config, metrics, Log(io.StringIO()), Boxes(1, 0, metrics))
    yield server, [Fusion(server), E2B(server)]


@asynccontextmanager
async def played(**settings: Any) -> AsyncIterator[Opened]:
    config = RolloutsConfig(**settings)
    async with rollouts.opened(config, Metrics(), Log(io.StringIO())) as server:
        yield server, [rollouts.Rollouts(server)]


SERVERS: dict[str, Any] = {
    "tools": tools,
    "openenv": lambda **settings: episodes(OpenEnv, **settings),
    "ors": lambda **settings: episodes(Ors, **settings),
    "sandbox": sandbox,
    "rollouts": played,
}
every_server = pytest.mark.parametrize("kind", SERVERS)


@asynccontextmanager
async def listening(
    server: BaseServer, protocols: Sequence[Protocol]
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of this server, which listens on a free port with the settings that real ones have."""
    with closing(bind("127.0.0.1", 0)) as listener:
        http = uvicorn.Server(http_config(server, protocols))
        running = asyncio.create_task(http.serve(sockets=[listener]))
        try:
            async with httpx.AsyncClient(base_url=url(listener), timeout=120) as client:
                yield client
        finally:
            http.should_exit = True
            await running


@asynccontextmanager
async def serving(kind: str, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server of this kind."""
    async with SERVERS[kind](**settings) as opened, listening(*opened) as client:
        yield client


async def status(client: httpx.AsyncClient, path: str, host: str) -> int:
    return (await client.get(path, headers={"host": host})).status_code


async def without_host(client: httpx.AsyncClient) -> bytes:
    """The first line of the answer to a request as no browser sends it."""
    reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
    writer.write(b"GET /health HTTP/1.0\r\n\r\n")
    line = await reader.readline()
    writer.close()
    await writer.wait_closed()
    return line.strip()


@every_server
async def test_a_name_that_others_can_rebind_gets_nothing_without_a_token(kind: str) -> None:
    """A page may make its own name mean this machine, and then reads the answers."""
    async with serving(kind) as client:
        for path in ("/health", "/metrics"):
            assert {await status(client, path, host) for host in OWN} == {200}
            assert {await status(client, path, host) for host in FOREIGN} == {403}
        refused = await client.get("/health", headers={"host": "example.com:8080"})
        assert refused.json()["detail"] == refused.json()["message"]
        assert "'example.com:8080'" in refused.json()["detail"]
        assert "localhost" in refused.json()["detail"]
        assert "(--token)" in refused.json()["detail"]
        assert ("(--domain)" in refused.json()["detail"]) == (kind == "sandbox")
        assert await status(client, "/nothing", "example.com") == 403
        assert await without_host(client) == b"HTTP/1.1 200 OK"


async def test_a_websocket_for_a_foreign_name_is_refused() -> None:
    async with serving("openenv") as client:
        address = str(client.base_url).replace("http", "ws", 1).rstrip("/") + "/ws"
        async with connect(address, additional_headers={}):
            pass
        port = client.base_url.port
        with pytest.raises(InvalidStatus) as refused:
            async with connect(f"ws://example.com:{port}/ws", host="127.0.0.1", port=port):
                pass
        assert refused.value.response.status_code == 403


async def test_websockets_are_counted_by_the_status_of_their_handshake() -> None:
    """A client that stays until it has an answer did not leave before (499)."""
    async with episodes(OpenEnv) as (server, protocols), listening(server, protocols) as client:
        address = str(client.base_url).replace("http", "ws", 1).rstrip("/")
        async with connect(f"{address}/ws"):
            pass
        for path, headers in (("/ws", {"origin": "http://example.com"}), ("/none", {})):
            with pytest.raises(InvalidStatus) as refused:
                async with connect(f"{address}{path}", additional_headers=headers):
                    pass
            assert refused.value.response.status_code == 403
        expected = {
            'air_serve_requests_total{code="101",path="/ws"} 1',
            'air_serve_requests_total{code="403",path="other"} 2',
        }
        await until(lambda: expected <= set(server.metrics.text().splitlines()))


async def test_a_sandbox_is_reached_below_the_servers_domain_alone() -> None:
    """The answer of a sandbox that does not exist is 502, so the request came to the sandboxes."""
    async with serving("sandbox", domain="boxes.example.org:8080") as client:
        assert await status(client, "/", "80-abc.boxes.example.org:8080") == 502
        assert await status(client, "/", "80-abc.localhost") == 502
        assert await status(client, "/health", "boxes.example.org") == 200
        for host in ("80-abc.example.com", "80-abc.notboxes.example.org", "example.org"):
            assert await status(client, "/", host) == 403
        named = {"host": "example.com", "e2b-sandbox-id": "abc"}
        assert (await client.get("/", headers=named)).status_code == 403


@every_server
async def test_what_a_server_lacks_is_named_in_a_form_that_all_clients_read(kind: str) -> None:
    async with serving(kind) as client:
        for method, path, status in (("GET", "/no/such", 404), ("DELETE", "/health", 405)):
            answer = await client.request(method, path)
            text = f"air does not serve {method} {path}"
            assert answer.json() == {"detail": text, "code": status, "message": text}
            assert answer.status_code == status
        assert "GET" in answer.headers["allow"]


async def test_only_requests_for_a_sandbox_may_be_larger_than_the_limit() -> None:
    """The sandbox does not exist, so 502 says that the request came to it. Large uploads are streamed."""
    async with serving("sandbox", max_body_mb=0.001) as client:
        for headers, expected in (({}, 413), ({"e2b-sandbox-id": "abc"}, 502)):
            answer = await client.post("/files", content=bytes(5000), headers=headers)
            assert answer.status_code == expected
        answer = await client.post("/", content=bytes(5000), headers={"host": "80-abc.localhost"})
        assert answer.status_code == 502


@every_server
async def test_with_a_token_any_name_is_served(kind: str) -> None:
    async with serving(kind, token=TOKEN) as client:
        client.headers["authorization"] = f"Bearer {TOKEN}"
        assert {await status(client, "/metrics", host) for host in ("air.example.com", "::")} == {
            200
        }


@every_server
async def test_health_names_nothing_to_those_without_the_token(kind: str) -> None:
    async with serving(kind) as client:
        whole = (await client.get("/health")).json()
    async with serving(kind, token=TOKEN) as client:
        for headers in ({}, {"authorization": "Bearer wrong"}):
            answer = await client.get("/health", headers=headers)
            assert (answer.status_code, answer.json()) == (200, {"status": whole["status"]})
        known = await client.get("/health", headers={"x-api-key": TOKEN})
        assert known.json().keys() == whole.keys() > {"status", "version"}
