"""WebSockets to programs in an E2B sandbox that do not answer the handshake as they should. A listener of
this process stands in for the program."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from air.sandbox.contract.box import BoxSpec
from air.sandbox.wire.port_relay import PIECE, Streams
from air.serve.e2b import websockets
from air.serve.e2b.sandbox import Sandbox, SandboxSettings

SCOPE: dict[str, Any] = {
    **{"type": "websocket", "path": "/", "query_string": b"", "subprotocols": []},
    **{"headers": [(b"host", b"localhost")]},
}
SECONDS = 20.0
"""Seconds after which a test fails. Without its fault, it takes a hundredth."""


class Client:
    """A client that wants to connect, and leaves when `leave` is set. `messages` are those that it got."""

    def __init__(self) -> None:
        self._asked = False
        self.leave = asyncio.Event()
        self.messages: list[Any] = []

    async def receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "websocket.connect"}
        await self.leave.wait()
        return {"type": "websocket.disconnect", "code": 1006}

    async def send(self, message: Any) -> None:
        self.messages.append(message)

    async def connect(self, streams: Streams, **options: float) -> None:
        sandbox = Sandbox(SandboxSettings("any"), BoxSpec(provider="process"))
        opening = websockets.serve(sandbox, 1, streams, SCOPE, self.receive, self.send, **options)
        await asyncio.wait_for(opening, SECONDS)


@asynccontextmanager
async def listening(answer: bytes, request: asyncio.Event) -> AsyncIterator[Streams]:
    """A connection to a program that gives one answer. `request` is set when a request has come."""

    async def program(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        request.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(program, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        streams = await asyncio.open_connection(host, port, limit=PIECE)
        try:
            yield streams
        finally:
            streams[1].close()
            await streams[1].wait_closed()


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 101 Switching Protocols\r\nUpgrade:"])
async def test_a_program_that_does_not_answer_has_limited_time(answer: bytes) -> None:
    client = Client()
    async with listening(answer, asyncio.Event()) as streams:
        await client.connect(streams, within=0.2)
    assert client.messages == [{"type": "websocket.close", "code": 1011}]


async def test_a_client_that_leaves_during_the_handshake_ends_it() -> None:
    client, request = Client(), asyncio.Event()
    async with listening(b"", request) as streams:
        connecting = asyncio.create_task(client.connect(streams))
        await request.wait()
        client.leave.set()
        await connecting
    assert [message["type"] for message in client.messages] == ["websocket.close"]


async def test_an_endless_line_is_no_answer() -> None:
    client = Client()
    async with listening(b"x" * (4 * PIECE), asyncio.Event()) as streams:
        await client.connect(streams)
    assert client.messages == [{"type": "websocket.close", "code": 1011}]
