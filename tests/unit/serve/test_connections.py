"""Clients that are slow, silent or too many: each is bounded, and the others are served."""

from __future__ import annotations

import asyncio
import contextlib
import io
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from air.errors import UsageError
from air.serve.http.app import BaseServer, Protocol, body_of
from air.serve.http.bodies import mark_body_forwarded
from air.serve.http.log import Log
from air.serve.http.metrics import Metrics, parse
from air.serve.http.server import bind, http_config, serve
from air.serve.http.settings import ListenConfig, ServeConfig, most_files
from tests.until import until

BIG = 32 << 20
"""More bytes than the kernel takes for a client that reads nothing."""
GET_BIG = "GET /big HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Echo(Protocol):
    """Answers with the size of the body: of all of it, or of a stream. Some answers wait for `go`."""

    name = "echo"

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.running = 0

    def routes(self) -> Sequence[BaseRoute]:
        async def size(request: Request) -> Response:
            return PlainTextResponse(str(len(await body_of(request, 64))))

        async def stream(request: Request) -> Response:
            mark_body_forwarded(request.scope, endless=True)
            return PlainTextResponse(str(len(await body_of(request, 64))))

        async def waiting(request: Request) -> Response:
            body = await body_of(request, 64)
            self.running += 1
            await self.go.wait()
            self.running -= 1
            return PlainTextResponse(str(len(body)))

        async def big(_: Request) -> Response:
            return PlainTextResponse(b"x" * BIG)

        async def deaf(_: Request) -> Response:
            return PlainTextResponse("no")

        posts = {"/size": size, "/stream": stream, "/waiting": waiting, "/deaf": deaf}
        return [
            Route("/big", big),
            *(Route(path, endpoint, methods=["POST"]) for path, endpoint in posts.items()),
        ]


class Served:
    """A server in this process."""

    def __init__(self, port: int, echo: Echo, metrics: Metrics) -> None:
        self.port, self.echo, self._metrics = port, echo, metrics

    def metric(self, name: str) -> float:
        """The sum of a metric's values."""
        rows = parse(self._metrics.text()).items()
        return sum(value for key, value in rows if key.partition("{")[0] == name)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """A connection, which is closed after the block."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield Client(reader, writer)
        finally:
            writer.transport.abort()


class Client:
    """One connection of a client that decides itself when it sends what."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def send(self, text: str) -> None:
        self._writer.write(text.encode())

    def post(self, path: str, body: str, size: int = -1) -> None:
        """Sends a request, whose body has perhaps more bytes than these."""
        length = len(body) if size < 0 else size
        self.send(
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}"
        )

    async def answer(self) -> tuple[int, str]:
        """The status and the body of the next answer."""
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
        size = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        return int(head.split()[1]), (await self._reader.readexactly(size)).decode()

    async def end(self) -> bytes:
        """What still comes until the server closes the connection."""
        with contextlib.suppress(ConnectionError):
            return await self._reader.read()
        return b""


@asynccontextmanager
async def serving(*, sent_bytes: int = 0, **settings: float) -> AsyncIterator[Served]:
    """A server with these settings. If `sent_bytes` is not 0, the kernel takes only about so many bytes of an
    answer."""
    config, metrics, echo = ListenConfig.model_validate(settings), Metrics(), Echo()
    server = BaseServer(config, metrics, Log(io.StringIO()))
    listener = bind("127.0.0.1", 0)
    if sent_bytes:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, sent_bytes)
    http = uvicorn.Server(http_config(server, [echo]))
    running = asyncio.create_task(http.serve(sockets=[listener]))
    try:
        served = Served(listener.getsockname()[1], echo, metrics)
        yield served
        echo.go.set()
        await until(lambda: served.metric("air_serve_connections") == 0)
        assert served.metric("air_serve_body_bytes") == 0
        assert served.metric("air_serve_connections_waiting") == 0
    finally:
        http.should_exit = True
        await running
        listener.close()


async def test_connections_on_which_no_request_arrives_end() -> None:
    async with (
        serving(head_seconds=0.3, keep_alive_seconds=0.3) as served,
        served.client() as silent,
        served.client() as slow,
        served.client() as idle,
    ):
        slow.send("POST /size HTTP/1.1\r\nHost:")
        idle.post("/size", "abc")
        assert await idle.answer() == (200, "3")
        assert await silent.end() == b""
        assert await idle.end() == b""
        await until(lambda: served.metric("air_serve_connections_closed_total") == 3)


async def test_headers_have_a_maximum_size() -> None:
    async with serving() as served, served.client() as client:
        client.send("POST /size HTTP/1.1\r\nHost: localhost\r\n")
        for number in range(300):
            client.send(f"X-{number}: {'x' * 1000}\r\n")
        assert (await client.answer())[0] == 431


async def test_headers_behind_a_running_request_or_a_body_have_a_maximum_size_too() -> None:
    lines = "".join(f"X-{number}: {'x' * 1000}\r\n" for number in range(300))
    async with serving() as served, served.client() as first, served.client() as second:
        first.post("/waiting", "abc")
        await until(lambda: served.echo.running == 1)
        first.send("POST /size HTTP/1.1\r\nHost: localhost\r\n" + lines)
        second.send(
            "POST /size HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
        )
        second.send(lines)
        assert await second.end() == b""
        served.echo.go.set()
        assert await first.answer() == (200, "3")
        assert await first.end() == b""


async def test_a_body_that_comes_too_slowly_is_refused_but_no_stream_is() -> None:
    async with (
        serving(body_seconds=0.2) as served,
        served.client() as slow,
        served.client() as stream,
    ):
        slow.post("/size", "abc", size=10)
        stream.post("/stream", "abc", size=6)
        status, text = await slow.answer()
        assert (status, "arrives too slowly: 3 bytes" in text) == (408, True)
        stream.send("def")
        assert await stream.answer() == (200, "6")


async def test_the_rest_of_a_body_is_not_awaited_after_the_answer() -> None:
    async with serving() as served, served.client() as client, served.client() as other:
        client.post("/deaf", "abc", size=10)
        other.post("/deaf", "abc", size=6)
        assert await client.answer() == await other.answer() == (200, "no")
        other.send("def")  # this one keeps its connection
        other.post("/size", "abc")
        assert await other.answer() == (200, "3")
        assert await client.end() == b""


async def test_an_answer_that_nobody_takes_is_dropped() -> None:
    async with serving(answer_seconds=0.3) as served, served.client() as client:
        client.send(GET_BIG)
        await until(lambda: served.metric("air_serve_connections_closed_total") == 1)
        await until(lambda: served.metric("air_serve_connections") == 0)
        assert len(await client.end()) < BIG


async def test_an_answer_that_is_taken_too_slowly_is_dropped() -> None:
    loop, taken = asyncio.get_running_loop(), 0
    async with serving(answer_seconds=0.5, sent_bytes=8192) as served:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
            client.setblocking(False)
            await loop.sock_connect(client, ("127.0.0.1", served.port))
            await loop.sock_sendall(client, GET_BIG.encode())
            with contextlib.suppress(ConnectionError):
                async with asyncio.timeout(60):
                    while data := await loop.sock_recv(client, 2048):
                        taken += len(data)
                        await asyncio.sleep(0.05)  # 40 KiB/s
        assert 0 < taken < BIG
        assert served.metric("air_serve_connections_closed_total") == 1


async def test_a_further_request_does_not_keep_an_answer_that_nobody_takes() -> None:
    async with serving(answer_seconds=0.3) as served, served.client() as client:
        client.send(2 * GET_BIG)
        await until(lambda: served.metric("air_serve_connections_closed_total") == 1)
        await until(lambda: served.metric("air_serve_answer_bytes") == 0)
        assert len(await client.end()) < BIG


async def test_answers_that_are_not_taken_have_a_maximum_size_together() -> None:
    async with (
        serving(max_bodies_mb=1) as served,
        served.client() as first,
        served.client() as second,
    ):
        first.send(GET_BIG)
        await until(lambda: served.metric("air_serve_answer_bytes") > 2**20)
        assert served.metric("air_serve_connections_closed_total") == 0
        second.send(GET_BIG)
        assert len(await first.end()) < BIG
        status, text = await second.answer()
        assert (status, len(text)) == (200, BIG)
        await until(lambda: served.metric("air_serve_answer_bytes") == 0)


async def test_an_idle_connection_makes_room_and_a_busy_one_does_not() -> None:
    async with contextlib.AsyncExitStack() as clients, serving(max_connections=2) as served:
        first, second = [await clients.enter_async_context(served.client()) for _ in range(2)]
        first.post("/size", "a")
        assert await first.answer() == (200, "1")
        second.post("/waiting", "ab")
        third = await clients.enter_async_context(served.client())
        third.post("/waiting", "abc")
        assert await first.end() == b""
        await until(lambda: served.echo.running == 2)
        fourth = await clients.enter_async_context(served.client())
        fourth.post("/size", "abcd")
        status, text = await fourth.answer()
        assert (status, "all 2 connections are in use" in text) == (503, True)
        served.echo.go.set()
        assert await second.answer() == (200, "2")
        assert await third.answer() == (200, "3")
        await clients.aclose()


async def test_the_bodies_of_running_requests_have_a_maximum_size_together() -> None:
    async with (
        serving(max_bodies_mb=1000 / 2**20) as served,
        served.client() as first,
        served.client() as second,
    ):
        first.post("/waiting", "x" * 900)
        await until(lambda: served.echo.running == 1)
        second.post("/size", "x" * 200)
        status, text = await second.answer()
        assert (status, "try again later" in text) == (503, True)
        served.echo.go.set()
        assert await first.answer() == (200, "900")
        second.post("/size", "x" * 200)
        assert await second.answer() == (200, "200")


async def test_several_requests_sent_at_once_are_answered_in_order() -> None:
    async with serving() as served, served.client() as client:
        for number in range(5):
            client.post("/size", "x" * number)
        assert [await client.answer() for _ in range(5)] == [(200, str(n)) for n in range(5)]


async def test_more_connections_than_open_files_are_refused_at_the_start() -> None:
    config = ServeConfig(port=0, max_connections=most_files())
    with pytest.raises(UsageError, match=r"--max-connections: .* need more open files"):
        await serve(config, [])
