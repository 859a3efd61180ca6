"""Relayed connections: a loopback port inside a box, answered by the harness, with no network between.

The guest listens and turns every connection into frames on the box's own stream (`air.sandbox.guest.relay`
says which); here each becomes an asyncio transport, with a reader and a writer for a handler of ours.

Bounded, whatever the box does: `CONNECTIONS` at once and about `CONNECTIONS / SLOT_SECONDS` new ones
a second (more wait in the box), `WINDOW` bytes unread in each direction beside asyncio's buffers.
Bytes for a box are sent a piece of each connection in turn and only as fast as its stream takes them,
so commands are not held up. A guest that breaks these rules is not ours, and its box is given up.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any

from air.errors import BoxFileError, BoxStartError
from air.sandbox.wire.connection import Connection

CONNECTIONS = 64
SLOT_SECONDS = 0.5
"""A connection holds its place at least this long, so that opening them in a loop costs us little."""
WINDOW = 1 << 17
PIECE = 1 << 15
LINGER_SECONDS = 30.0
"""How long the last bytes of a connection may take to leave, in seconds."""
_LOG = logging.getLogger(__name__)

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Answers one connection; it is closed when the handler returns, and reset where it raises."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Relay:
    """All relayed connections of one box; belongs to its `Connection`, and ends with it."""

    def __init__(self, connection: Connection, name: str) -> None:
        self.connection, self._name = connection, name
        self._handlers: dict[int, Handler] = {}
        self._transports: dict[int, RelayedTransport] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns: deque[RelayedTransport] = deque()
        self._sender: asyncio.Task[None] | None = None
        connection.relay = self

    async def listen(self, port: int, handler: Handler) -> int:
        """Opens the loopback port `port` in the box (0: any free one); returns the port.

        Raises:
            BoxStartError: the port is taken or may not be opened.
            BoxDiedError: the box is gone.
        """
        key = self.connection.new_id()
        self._handlers[key] = handler
        request = {"op": "listen", "key": key, "port": port}
        try:
            reply, _ = await self.connection.request(
                {**request, "window": WINDOW, "most": CONNECTIONS}
            )
        except BoxFileError as error:
            del self._handlers[key]
            raise BoxStartError(
                f"box {self._name}: port {port} cannot be opened: {error}"
            ) from None
        return int(reply["port"])

    def receive(self, header: Mapping[str, Any], body: bytes) -> None:
        """Takes one frame of the guest's; ValueError for one that ours would not send."""
        conn, do = header.get("conn"), header.get("do")
        if not isinstance(conn, int):
            raise ValueError("a relayed connection without a number")
        if do == "open":
            self._open(conn, header.get("key"))
        elif transport := self._transports.get(conn):
            transport.receive(do, header, body)

    def lose(self, reason: str) -> None:
        """The box's stream is over: so is every connection."""
        for transport in self._transports.values():
            transport.lose(ConnectionResetError(f"box {self._name}: {reason}"))

    async def close(self) -> None:
        """Ends every handler and waits for it; a connection that closes calls it."""
        tasks = [*self._tasks, *([self._sender] if self._sender else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def want_turn(self, transport: RelayedTransport) -> None:
        """Puts a transport that has something to send in the queue, once."""
        if not transport.in_turn:
            transport.in_turn = True
            self._turns.append(transport)
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send())

    async def _send(self) -> None:
        while self._turns:
            transport = self._turns.popleft()
            transport.in_turn = False
            transport.send_piece()
            await self.connection.drain()

    def _open(self, conn: int, key: object) -> None:
        handler = self._handlers.get(key) if isinstance(key, int) else None
        if handler is None or conn in self._transports or len(self._transports) >= CONNECTIONS:
            raise ValueError("a relayed connection that is one too many")
        transport = self._transports[conn] = RelayedTransport(self, conn)
        streams = transport.streams()  # now: its first bytes may be here already
        task = asyncio.create_task(self._serve(transport, handler, streams))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, transport: RelayedTransport, handler: Handler, near: Streams) -> None:
        loop = asyncio.get_running_loop()
        free_at = loop.time() + SLOT_SECONDS
        try:
            await handler(*near)
            await finish(near[1])
        except OSError as error:  # one of the two ends is gone, or too slow
            _LOG.debug("box %s: a relayed connection broke: %r", self._name, error)
        except Exception:  # a handler at fault ends its connection, not the box
            _LOG.exception("box %s: a handler of relayed connections failed", self._name)
        finally:
            transport.abort()
        await asyncio.sleep(free_at - loop.time())
        del self._transports[transport.conn]
        transport.post("free")


class RelayedTransport(asyncio.Transport):
    """The host's end of one connection."""

    HIGH, LOW = 1 << 16, 1 << 14

    def __init__(self, relay: Relay, conn: int) -> None:
        super().__init__()
        self.conn, self.in_turn = conn, False
        self._relay = relay
        self._protocol: asyncio.BaseProtocol | None = None
        self._pending = bytearray()
        self._credit = self._room = WINDOW
        self._owed = 0
        self._reading, self._writing = True, True
        self._last = ""  # what is said when all is sent: "eof" or "close"
        self._ended = self._closing = self._over = False

    def streams(self) -> Streams:
        """A reader and a writer over this transport."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=PIECE, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        self.set_protocol(protocol)
        protocol.connection_made(self)
        return reader, asyncio.StreamWriter(self, protocol, reader, loop)

    # From the box

    def receive(self, do: object, header: Mapping[str, Any], body: bytes) -> None:
        """Takes one frame; see `Relay.receive`."""
        protocol = self._protocol
        if do == "credit" and isinstance(more := header.get("bytes"), int) and more > 0:
            self._credit += more
            if self._pending:
                self._wake()
        elif do == "close":
            self.lose(ConnectionResetError("the program in the box closed the connection"))
        elif do not in ("data", "eof") or len(body) > self._room:
            raise ValueError(f"a relayed connection that says {do!r}, {len(body)} bytes")
        elif self._closing or not isinstance(protocol, asyncio.Protocol):
            return  # nobody reads, and no room is given back
        elif do == "eof":
            if not protocol.eof_received():
                self.close()
        else:
            self._room -= len(body)
            self._owed += len(body)
            protocol.data_received(body)
            self._give_room()

    def lose(self, error: Exception | None) -> None:
        """The connection is over: the protocol learns it once."""
        if self._over:
            return
        self._over = self._closing = True
        self._pending.clear()
        if self._protocol is not None:
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, error)

    def _give_room(self) -> None:
        if self._reading and not self._closing and self._owed >= WINDOW // 2:
            self.post("credit", bytes=self._owed)
            self._room += self._owed
            self._owed = 0

    # To the box

    def post(self, do: str, body: bytes = b"", **more: int) -> None:
        """Sends one frame about this connection."""
        header = {"op": "relay", "id": 0, "conn": self.conn, "do": do, **more}
        self._relay.connection.post(header, body)

    def send_piece(self) -> None:
        """Sends what the box takes now, at most one piece; asks for another turn if there is more."""
        if self._over:
            return
        if piece := bytes(self._pending[: min(PIECE, self._credit)]):
            del self._pending[: len(piece)]
            self._credit -= len(piece)
            self.post("data", piece)
        if not self._writing and len(self._pending) <= self.LOW and self._protocol is not None:
            self._writing = True
            self._protocol.resume_writing()
        if self._pending:
            self._wake()
        elif self._last:
            self.post(self._last)
            self._last = ""
            if self._closing:
                self.lose(None)

    def _wake(self) -> None:
        if not self._over and (self._credit or not self._pending):
            self._relay.want_turn(self)

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        """Queues `data`; the protocol is told to pause when much is queued."""
        if self._ended:
            raise RuntimeError("a relayed connection was written to after its end")
        if self._closing or not data:
            return
        self._pending += data
        if self._writing and len(self._pending) > self.HIGH and self._protocol is not None:
            self._writing = False
            self._protocol.pause_writing()
        self._wake()

    def write_eof(self) -> None:
        """Ends what is written; reading goes on."""
        if not (self._ended or self._closing):
            self._ended, self._last = True, "eof"
            self._wake()

    def can_write_eof(self) -> bool:
        """Yes: a connection can be closed by halves."""
        return True

    def close(self) -> None:
        """Closes the connection when all that was written is sent."""
        if not self._closing:
            self._closing, self._last = True, "close"
            self._wake()

    def abort(self) -> None:
        """Resets the connection at once, unless it is over."""
        if not self._over:
            self.post("abort")
            self.lose(None)

    # What else asyncio asks of a transport

    def is_closing(self) -> bool:
        """Whether it is closed or closing."""
        return self._closing

    def pause_reading(self) -> None:
        """Stops giving room to the box: at most `WINDOW` bytes more come."""
        self._reading = False

    def resume_reading(self) -> None:
        """Gives room again."""
        self._reading = True
        self._give_room()

    def is_reading(self) -> bool:
        """Whether room is given."""
        return self._reading and not self._closing

    def get_write_buffer_size(self) -> int:
        """Bytes that wait for the box to take them."""
        return len(self._pending)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Who is told what comes."""
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Who is told what comes."""
        assert self._protocol is not None
        return self._protocol


def to(host: str, port: int) -> Handler:
    """A handler that connects to `host` and copies both ways."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far = await asyncio.open_connection(host, port, limit=PIECE)
        async with closing(far):
            await splice((reader, writer), far)

    return handler


@asynccontextmanager
async def closing(streams: Streams) -> AsyncIterator[None]:
    """Closes a connection when the block ends, and drops it at once where it raises.

    Raises:
        OSError: (TimeoutError) its last bytes do not leave.
    """
    try:
        yield
        await finish(streams[1])
    finally:
        streams[1].transport.abort()


async def finish(writer: asyncio.StreamWriter) -> None:
    """Closes a writer and waits until its last bytes have left; OSError if they do not."""
    async with asyncio.timeout(LINGER_SECONDS):
        writer.close()
        await writer.wait_closed()


async def splice(one: Streams, other: Streams, *, idle: float | None = None) -> None:
    """Copies both ways until both have ended.

    Args:
        idle: seconds without a byte in either direction after which it is given up.

    Raises:
        OSError: one of the two is gone, or (TimeoutError) idle.
    """
    async with patience(idle) as alive:
        await both(copy(one[0], other[1], alive), copy(other[0], one[1], alive))


@asynccontextmanager
async def patience(idle: float | None) -> AsyncIterator[Callable[[], None]]:
    """A time limit of `idle` seconds that every call of what it yields puts off; TimeoutError."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(idle) as limit:

        def alive() -> None:
            if idle is not None:
                limit.reschedule(loop.time() + idle)

        yield alive


async def copy(
    source: asyncio.StreamReader, sink: asyncio.StreamWriter, alive: Callable[[], None]
) -> None:
    """Copies up to the end of `source`, and ends `sink`; calls `alive` after every piece."""
    while data := await source.read(PIECE):
        sink.write(data)
        await sink.drain()
        alive()
    sink.write_eof()


async def both(*work: Coroutine[Any, Any, None]) -> None:
    """Waits for all; when one fails, the others are cancelled, and its error is raised."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
