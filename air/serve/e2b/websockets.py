"""Copies the messages of a client's WebSocket to and from a WebSocket server that runs in a sandbox."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import Receive, Scope, Send
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from air.aio import cancel_and_wait
from air.sandbox.wire.port_relay import PIECE, Streams
from air.serve.e2b.forwarded_requests import request_headers, target
from air.serve.e2b.sandbox import Sandbox

MOST_BYTES = 16 << 20
"""The maximum size in bytes of one WebSocket message from a program in a sandbox."""
CLOSE_SECONDS = 5.0
"""Seconds that a program in the sandbox has to close its WebSocket after the client has disconnected. After
this time, this server closes the connection."""
HANDSHAKE_SECONDS = 30.0
"""Seconds within which a program in the sandbox must answer the WebSocket handshake. After this time, or if
the client disconnects earlier, this server closes the connection."""
_OF_THE_HANDSHAKE = {
    *(b"sec-websocket-key", b"sec-websocket-version", b"sec-websocket-extensions"),
    *(b"sec-websocket-protocol", b"host"),
}


async def serve(
    sandbox: Sandbox,
    port: int,
    streams: Streams,
    scope: Scope,
    receive: Receive,
    send: Send,
    *,
    within: float = HANDSHAKE_SECONDS,
) -> None:
    """Forwards a client's WebSocket to the program that listens on `port` in the sandbox: opens a WebSocket
    over the connection `streams`, and copies messages in both directions until one side closes. The program
    must open its side `within` so many seconds. `scope`, `receive` and `send` are the arguments of an ASGI
    application."""
    headers = request_headers(sandbox, port, scope)
    host = dict(headers)[b"host"].decode("latin-1")
    protocol = ClientProtocol(
        parse_uri(f"ws://{host}{target(scope).decode('latin-1')}"),
        subprotocols=scope.get("subprotocols") or None,
        max_size=MOST_BYTES,
    )
    request = protocol.connect()
    for name, value in headers:
        if name not in _OF_THE_HANDSHAKE:
            request.headers[name.decode("latin-1")] = value.decode("latin-1")
    protocol.send_request(request)
    await receive()  # the client's wish to connect
    if await _opened(protocol, streams, receive, within):
        await send({"type": "websocket.accept", "subprotocol": protocol.subprotocol})
        await _copy(protocol, streams, receive, send)
    else:  # no WebSocket server listens there, or it refuses
        await send({"type": "websocket.close", "code": 1011})


async def _opened(
    protocol: ClientProtocol, streams: Streams, receive: Receive, within: float
) -> bool:
    """Performs the handshake with the program in the sandbox, and returns whether it succeeded. It fails also
    if it takes longer than `within` seconds, or if the client disconnects meanwhile."""
    handshake = asyncio.create_task(_handshake(protocol, *streams))
    leaving = asyncio.ensure_future(receive())  # before the server accepts, a client sends nothing
    try:
        await asyncio.wait(
            [handshake, leaving], timeout=within, return_when=asyncio.FIRST_COMPLETED
        )
        return handshake.done() and not leaving.done() and handshake.result()
    except (OSError, ValueError):  # ValueError: a line is too long
        return False
    finally:
        for task in (handshake, leaving):
            task.cancel()
        await asyncio.gather(handshake, leaving, return_exceptions=True)


async def _handshake(
    protocol: ClientProtocol, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> bool:
    """Performs the WebSocket handshake with the program in the sandbox, as the client `protocol`, over the
    connection `reader` and `writer`. Returns whether it succeeded. Reads no bytes that come after the
    handshake."""
    await _flush(protocol, writer)
    while protocol.state is State.CONNECTING:
        line = await reader.readline()
        if not line:
            return False
        protocol.receive_data(line)
    protocol.events_received()  # the answer of the server
    opened: State = protocol.state
    return opened is State.OPEN


async def _copy(protocol: ClientProtocol, streams: Streams, receive: Receive, send: Send) -> None:
    reader, writer = streams
    outward = asyncio.create_task(_to_box(protocol, writer, receive))
    parts: list[bytes] = []
    kind = Opcode.TEXT
    try:
        while await _feed(protocol, reader):
            for frame in protocol.events_received():
                if isinstance(frame, Frame) and frame.opcode in (
                    Opcode.TEXT,
                    Opcode.BINARY,
                    Opcode.CONT,
                ):
                    kind = kind if frame.opcode is Opcode.CONT else frame.opcode
                    parts.append(bytes(frame.data))
                    if frame.fin:
                        await send(_message(kind, b"".join(parts)))
                        parts = []
            await _flush(protocol, writer)
            if protocol.close_rcvd is not None:
                break
        closed = protocol.close_rcvd
        code = closed.code if closed and closed.code in range(1000, 5000) else 1011
        if not outward.done():
            await send({"type": "websocket.close", "code": 1000 if code == 1005 else code})
    finally:
        await cancel_and_wait(outward)


def _message(kind: Opcode, data: bytes) -> dict[str, Any]:
    if kind is Opcode.TEXT:
        return {"type": "websocket.send", "text": data.decode("utf-8", "replace")}
    return {"type": "websocket.send", "bytes": data}


async def _to_box(protocol: ClientProtocol, writer: asyncio.StreamWriter, receive: Receive) -> None:
    """Forwards the client's messages to the program in the sandbox until the client disconnects. Then closes
    the connection to the program."""
    while (message := await receive())["type"] == "websocket.receive":
        if (text := message.get("text")) is not None:
            protocol.send_text(text.encode())
        else:
            protocol.send_binary(message.get("bytes") or b"")
        await _flush(protocol, writer)
    code = message.get("code") or 1000
    protocol.send_close(code if code not in (1005, 1006) else 1000)
    await _flush(protocol, writer)
    await asyncio.sleep(CLOSE_SECONDS)
    writer.transport.abort()


async def _flush(protocol: ClientProtocol, writer: asyncio.StreamWriter) -> None:
    for data in protocol.data_to_send():
        if data:
            writer.write(data)
    await writer.drain()


async def _feed(protocol: ClientProtocol, reader: asyncio.StreamReader) -> bool:
    """Waits for bytes that the program in the sandbox sends, and gives them to `protocol`, which parses them
    to WebSocket messages. Returns False at the end of the connection, otherwise True."""
    data = await reader.read(PIECE)
    if data:
        protocol.receive_data(data)
    return bool(data)
