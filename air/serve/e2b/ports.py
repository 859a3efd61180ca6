"""Forwards HTTP/1.1 requests and WebSockets from clients to programs that listen on ports of a sandbox.

For each request, air's helper program in the sandbox's box (container) opens two connections and joins them:
one to the port, and one to the port relay, a loopback port of the box whose connections reach this server. So
the box needs no network, and requests reach only the loopback ports of that box, not other boxes or this
machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import h11
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from air.sandbox.wire.port_relay import PIECE, Streams
from air.serve.e2b import websockets
from air.serve.e2b.errors import ApiError, RpcError
from air.serve.e2b.forwarded_requests import HOP_BY_HOP, request_headers, target
from air.serve.e2b.helper_program import Program
from air.serve.e2b.sandbox import Sandbox
from air.serve.http.bodies import mark_body_forwarded

WORD_SECONDS = 10.0


class Ports:
    """Opens connections from the server to programs that listen on ports of one sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._lock = asyncio.Lock()
        self._program: Program | None = None
        self._awaited: dict[str, asyncio.Future[Streams]] = {}

    @asynccontextmanager
    async def connection(self, port: int) -> AsyncIterator[Streams]:
        """Async context manager: yields a connection, as a pair of asyncio streams (reader, writer), to the
        program that listens on `port` in the sandbox. Raises RpcError if no program listens there."""
        word = secrets.token_hex(16)
        arrival = self._awaited[word] = asyncio.get_running_loop().create_future()
        try:
            yield await self._dial(port, word, arrival)
        finally:
            del self._awaited[word]
            # The box may have connected although `_dial` failed, for instance because the program died then.
            if arrival.done() and not arrival.cancelled():
                arrival.result()[1].close()

    async def _dial(self, port: int, word: str, arrival: asyncio.Future[Streams]) -> Streams:
        """Asks the helper program in the box to connect `port` to this server, and returns the connection as
        asyncio streams. `word` is the secret by which `_arrived` recognizes the connection; it then passes
        the streams to `arrival`. Raises RpcError if that fails."""
        try:
            program = await self._started()
            await program.ask("dial", port=port, word=word)
            async with asyncio.timeout(WORD_SECONDS):
                return await arrival
        except TimeoutError:
            raise RpcError("unavailable", "the box did not connect") from None

    async def _started(self) -> Program:
        async with self._lock:
            if self._program is None:
                relay = await self._sandbox.running_box.forward(0, self._arrived)
                self._program = Program(self._sandbox.awake_box, "ports", str(relay))
                self._sandbox.programs["ports"] = self._program
        return self._program

    async def _arrived(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handles a new connection that comes from the box through the port relay (a port of the box whose
        connections reach this server). The first line on the connection is a secret word. It shows which call
        of `connection` waits for this connection."""
        try:
            async with asyncio.timeout(WORD_SECONDS):
                word = (await reader.readuntil(b"\n")).decode("ascii", "replace").strip()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return  # the box may send what it likes
        arrival = self._awaited.get(word)
        if arrival is None or arrival.done():  # the box may connect as it likes
            return
        arrival.set_result((reader, writer))
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def ports_of(sandbox: Sandbox) -> Ports:
    """Returns the `Ports` object of a sandbox, which opens connections to the sandbox's ports. The first call
    creates the object."""
    ports: Ports = sandbox.box_state.setdefault("ports", Ports(sandbox))
    return ports


async def serve(sandbox: Sandbox, port: int, scope: Scope, receive: Receive, send: Send) -> None:
    """Forwards a client's HTTP request or WebSocket to the program that listens on `port` in the sandbox, and
    the response to the client. If no program listens there, responds with the status 502 (or closes the
    WebSocket). `scope`, `receive` and `send` are the arguments of an ASGI application."""
    try:
        async with sandbox.use(), ports_of(sandbox).connection(port) as streams:
            if scope["type"] == "websocket":
                await websockets.serve(sandbox, port, streams, scope, receive, send)
            else:
                await _http(sandbox, port, streams, scope, receive, send)
    except RpcError:
        body = {"sandboxId": sandbox.id, "port": port, "code": 502}
        body["message"] = "The sandbox is running but port is not open"
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1014, "reason": body["message"]})
        else:
            await JSONResponse(body, status_code=502)(scope, receive, send)


async def _http(
    sandbox: Sandbox, port: int, streams: Streams, scope: Scope, receive: Receive, send: Send
) -> None:
    """Forwards a client's HTTP request to the program on `port` over the connection `streams`, and its
    response to the client."""
    mark_body_forwarded(scope, endless=True)
    reader, writer = streams
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 16)
    headers = request_headers(sandbox, port, scope)
    if not any(name == b"content-length" for name, _ in headers) and _has_body(scope):
        headers.append((b"transfer-encoding", b"chunked"))
    headers.append((b"connection", b"close"))
    named = [
        (name.title(), value) for name, value in headers
    ]  # as programs expect them, not `host`
    try:
        if scope["method"] == "CONNECT":  # the answer would not end, but become a tunnel
            raise h11.LocalProtocolError("CONNECT is not passed on")
        request = h11.Request(method=scope["method"], target=target(scope), headers=named)
    except h11.LocalProtocolError as error:
        raise ApiError(400, f"the request is not passed on: {error}") from None
    writer.write(connection.send(request) or b"")
    upload = asyncio.create_task(_send_body(connection, writer, receive))
    started = False
    try:
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await reader.read(PIECE))
            elif isinstance(event, h11.Response):
                started = True
                kept = [
                    pair for pair in event.headers.raw_items() if pair[0].lower() not in HOP_BY_HOP
                ]
                await send(
                    {"type": "http.response.start", "status": event.status_code, "headers": kept}
                )
            elif isinstance(event, h11.Data):
                await send(
                    {"type": "http.response.body", "body": bytes(event.data), "more_body": True}
                )
            elif isinstance(event, (h11.EndOfMessage, h11.ConnectionClosed)):
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            elif event is h11.PAUSED:  # it would be the answer to every further call
                raise h11.RemoteProtocolError("it sent more than one answer")
    except (h11.RemoteProtocolError, OSError) as error:
        if not started:
            text = f"the program on port {port} sent no valid HTTP: {error}"
            body = {"code": 502, "message": text, "sandboxId": sandbox.id, "port": port}
            await JSONResponse(body, status_code=502)(scope, receive, send)
    finally:
        upload.cancel()
        await asyncio.wait([upload])


def _has_body(scope: Scope) -> bool:
    return any(name == b"transfer-encoding" for name, _ in scope["headers"])


async def _send_body(
    connection: h11.Connection, writer: asyncio.StreamWriter, receive: Receive
) -> None:
    """Forwards the client's request body to the program in the box over `writer`. When the client
    disconnects, aborts the connection to the program."""
    with contextlib.suppress(h11.LocalProtocolError, OSError):
        more = True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                break
            if message.get("body"):
                writer.write(connection.send(h11.Data(data=message["body"])) or b"")
                await writer.drain()
            more = message.get("more_body", False)
        else:
            writer.write(connection.send(h11.EndOfMessage()) or b"")
            await writer.drain()
    while (await receive())["type"] != "http.disconnect":
        pass
    writer.transport.abort()
