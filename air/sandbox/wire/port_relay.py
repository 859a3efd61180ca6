"""The port relay: lets programs in a box, which may have no network, use a service outside. A program
connects to a loopback port of the box, and a function in the air process on the host (the port's handler)
serves the connection.

Each such connection becomes an asyncio transport on the host; the handler gets its reader and writer. The
guest (air's program inside the box) passes the bytes on in frames (messages), which `air.sandbox.guest.relay`
describes. Limits of each box: `CONNECTIONS` connections at once, and about `CONNECTIONS / SLOT_SECONDS` new
connections per second. Limit of each direction of a connection: `WINDOW` unread bytes. Connections take turns
to send, so they do not delay commands. If a guest exceeds these limits, the stream to its box is closed,
which ends the box.
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
"""Even if a relayed connection ends earlier, it counts for this number of seconds as one of the at most
`CONNECTIONS` connections at once. This limits the number of new connections per second."""
WINDOW = 1 << 17
PIECE = 1 << 15
LINGER_SECONDS = 30.0
"""Maximum number of seconds for sending the last bytes of a connection that is being closed."""
_LOG = logging.getLogger(__name__)

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""A function that serves one relayed connection. When the function returns, the connection is closed; if it
raises an error, the connection is reset."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Relay:
    """The host's side of all relayed ports of one box. Passes each connection that a program in the box opens
    to the handler (function) of the port."""

    def __init__(self, connection: Connection, name: str) -> None:
        self.connection = connection
        self._name = name
        self._handlers: dict[int, Handler] = {}
        self._transports: dict[int, RelayedTransport] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns: deque[RelayedTransport] = deque()
        self._sender: asyncio.Task[None] | None = None
        connection.relay = self

    async def listen(self, port: int, handler: Handler) -> int:
        """Opens the loopback port `port` (0: any free one) in the box, whose connections the function
        `handler` then serves, and returns the port's number.

        Raises BoxStartError if the port is in use or forbidden, and BoxDiedError if the box is gone.
        """
        key = self.connection.new_id()
        self._handlers[key] = handler
        bounds = {"window": WINDOW, "most": CONNECTIONS}
        try:
            request = {"op": "listen", "key": key, "port": port, **bounds}
            reply, _ = await self.connection.request(request)
        except BoxFileError as error:
            del self._handlers[key]
            message = f"box {self._name}: port {port} cannot be opened: {error}"
            raise BoxStartError(message) from None
        return int(reply["port"])

    def receive(self, header: Mapping[str, Any], body: bytes) -> None:
        """Handles one frame of the guest about a relayed connection. Raises ValueError if the frame breaks
        the rules of the port relay."""
        conn, do = header.get("conn"), header.get("do")
        if not isinstance(conn, int):
            raise ValueError("a relayed connection without a number")
        if do == "open":
            self._open(conn, header.get("key"))
        elif transport := self._transports.get(conn):
            transport.receive(do, header, body)

    def lose(self, reason: str) -> None:
        """Ends all relayed connections with an error, because the stream to the guest has ended. `reason`
        says why it ended."""
        for transport in self._transports.values():
            transport.lose(ConnectionResetError(f"box {self._name}: {reason}"))

    async def close(self) -> None:
        """Cancels all running handlers (the functions that serve relayed connections) and waits until they
        have ended. It is called when the stream to the guest is closed."""
        tasks = [*self._tasks, *([self._sender] if self._sender else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def want_turn(self, transport: RelayedTransport) -> None:
        """Adds `transport` to the queue of connections that have bytes to send, unless it is already in the
        queue."""
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
        task = asyncio.create_task(self._serve(transport, handler))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, transport: RelayedTransport, handler: Handler) -> None:
        loop = asyncio.get_running_loop()
        free_at = loop.time() + SLOT_SECONDS
        try:
            await handler(*transport.streams)
            await finish(transport.streams[1])
        except OSError as error:  # one end is gone or too slow
            _LOG.debug("box %s: a relayed connection broke: %r", self._name, error)
        except Exception:  # a faulty handler ends its connection, not the box
            _LOG.exception("box %s: a handler of relayed connections failed", self._name)
        finally:
            transport.abort()
            # The streams refer to the transport: a reference cycle that would keep unread bytes in memory.
            del transport.streams
        await asyncio.sleep(free_at - loop.time())
        del self._transports[transport.conn]
        transport.post("free")


class RelayedTransport(asyncio.Transport):
    """The host's end of one network connection that a program in the box opened, as an asyncio transport."""

    HIGH, LOW = 1 << 16, 1 << 14

    def __init__(self, relay: Relay, conn: int) -> None:
        super().__init__()
        self.conn = conn
        self.in_turn = False
        self._relay = relay
        self._pending = bytearray()
        self._credit = self._room = WINDOW
        self._owed = 0
        self._reading = True
        self._writing = True
        self._last = ""  # the frame to send after all bytes: "eof" or "close"
        self._ended = self._closing = self._over = False
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=PIECE, loop=loop)
        self._protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        self._protocol.connection_made(self)
        self.streams: Streams = reader, asyncio.StreamWriter(self, self._protocol, reader, loop)

    # From the box

    def receive(self, do: object, header: Mapping[str, Any], body: bytes) -> None:
        """Handles one frame of the guest about this connection. `do` is the kind of frame: `data`, `eof`,
        `credit` (permission to send more bytes) or `close`. Raises ValueError if the frame breaks the rules
        of the port relay."""
        if do == "credit" and isinstance(more := header.get("bytes"), int) and more > 0:
            self._credit += more
            if self._pending:
                self._wake()
        elif do == "close":
            self.lose(ConnectionResetError("the program in the box closed the connection"))
        elif do not in ("data", "eof") or len(body) > self._room:
            raise ValueError(f"a relayed connection that says {do!r}, {len(body)} bytes")
        elif self._closing:
            return  # nobody reads, so the guest gets no credit (permission to send more bytes)
        elif do == "eof":
            if not self._protocol.eof_received():
                self.close()
        else:
            self._room -= len(body)
            self._owed += len(body)
            self._protocol.data_received(body)
            self._give_credit()

    def lose(self, error: Exception | None) -> None:
        """Ends this relayed connection at once, and passes `error` (None: a normal end) to its asyncio
        protocol. Later calls do nothing."""
        if not self._over:
            self._over = self._closing = True
            self._pending.clear()
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, error)

    def _give_credit(self) -> None:
        if self._reading and not self._closing and self._owed >= WINDOW // 2:
            self.post("credit", bytes=self._owed)
            self._room += self._owed
            self._owed = 0

    # To the box

    def post(self, do: str, body: bytes = b"", **more: int) -> None:
        """Sends to the guest one frame of the kind `do` about this connection, with the additional header
        fields `more`."""
        header = {"op": "relay", "id": 0, "conn": self.conn, "do": do, **more}
        self._relay.connection.post(header, body)

    def send_piece(self) -> None:
        """Sends queued bytes to the program in the box: at most `PIECE` bytes, and at most as many as the
        remaining permission (credit) from the guest allows."""
        if self._over:
            return
        if piece := bytes(self._pending[: min(PIECE, self._credit)]):
            del self._pending[: len(piece)]
            self._credit -= len(piece)
            self.post("data", piece)
        if not self._writing and len(self._pending) <= self.LOW:
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
        """Queues `data` to be sent to the program in the box. While more than `HIGH` bytes are queued, the
        handler's writer must wait in `drain`."""
        if self._ended:
            raise RuntimeError("a relayed connection was written to after its end")
        if self._closing or not data:
            return
        self._pending += data
        if self._writing and len(self._pending) > self.HIGH:
            self._writing = False
            self._protocol.pause_writing()
        self._wake()

    def write_eof(self) -> None:
        """Closes the direction from the host to the box after all queued bytes are sent."""
        if not (self._ended or self._closing):
            self._ended = True
            self._last = "eof"
            self._wake()

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        """Closes the relayed connection in both directions after all queued bytes are sent."""
        if not self._closing:
            self._closing = True
            self._last = "close"
            self._wake()

    def abort(self) -> None:
        """Resets the relayed connection: ends it at once, without sending the queued bytes. Does nothing if
        it has already ended."""
        if not self._over:
            self.post("abort")
            self.lose(None)

    # The other methods of an asyncio transport

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        """Stops allowing the program in the box to send more bytes. At most `WINDOW` bytes that were allowed
        earlier can still come."""
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._give_credit()

    def get_write_buffer_size(self) -> int:
        return len(self._pending)


def to(host: str, port: int) -> Handler:
    """Returns a handler, which is a function that serves one connection of a program in a box. This handler
    connects to `host` and `port`, and copies bytes in both directions between the program and that server."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far = await asyncio.open_connection(host, port, limit=PIECE)
        async with closing(far):
            await splice((reader, writer), far)

    return handler


@asynccontextmanager
async def closing(streams: Streams) -> AsyncIterator[None]:
    """Async context manager for a connection; `streams` are its reader and writer. After the block, sends the
    unsent bytes and closes the connection. If the block raises, aborts the connection instead."""
    try:
        yield
        await finish(streams[1])
    finally:
        streams[1].transport.abort()


async def finish(writer: asyncio.StreamWriter) -> None:
    """Closes a writer after its unsent bytes are sent. Raises OSError if they cannot be sent within
    `LINGER_SECONDS`."""
    async with asyncio.timeout(LINGER_SECONDS):
        writer.close()
        await writer.wait_closed()


async def splice(one: Streams, other: Streams, *, idle: float | None = None) -> None:
    """Copies bytes between two connections, in both directions, until both have ended. Raises TimeoutError if
    no byte comes for `idle` seconds (None: never)."""
    async with idle_timeout(idle) as alive:
        await both(copy(one[0], other[1], alive), copy(other[0], one[1], alive))


@asynccontextmanager
async def idle_timeout(idle: float | None) -> AsyncIterator[Callable[[], None]]:
    """Async context manager: yields a function, which the block must call whenever it makes progress. Raises
    TimeoutError if the block does not call it for `idle` seconds (None: no limit)."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(idle) as limit:

        def alive() -> None:
            if idle is not None:
                limit.reschedule(loop.time() + idle)

        yield alive


async def copy(
    source: asyncio.StreamReader, sink: asyncio.StreamWriter, alive: Callable[[], None]
) -> None:
    """Copies bytes from `source` to `sink` until `source` ends, then sends end-of-file on `sink`. Calls
    `alive` after each piece, to report progress."""
    while data := await source.read(PIECE):
        sink.write(data)
        await sink.drain()
        alive()
    sink.write_eof()


async def both(*work: Coroutine[Any, Any, None]) -> None:
    """Runs coroutines concurrently until all have ended. If one fails, cancels the others and raises its
    error."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
