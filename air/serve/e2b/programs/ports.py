"""The helper program `ports`, which the server starts in the box (container) of a sandbox: it lets the server
connect to programs that listen on ports of the box.

Its argument is the number of the port relay, a loopback port of the box whose connections reach the server. A
request `dial` names a port of the box and a secret word. The program connects to the port and to the port
relay, sends the word as one line to the relay, and then copies bytes in both directions. Standard library
only, Python >= 3.8, and no import of `air` except the modules beside this file.
"""

from __future__ import annotations

import selectors
import socket
import sys

from air.serve.e2b.programs.frames import receive, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ROOM = 1 << 17
DIAL_SECONDS = 5.0


class PairedConnection:
    """One of two connections that are joined: the bytes received on each are sent on the other. `pending`
    holds the bytes that must still be sent on this connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.pending = bytearray()
        self.other: PairedConnection = self
        self.received_eof = self.sent_eof = False

    @property
    def events(self) -> int:
        reads = not self.received_eof and len(self.other.pending) < ROOM
        writes = bool(self.pending) or (self.other.received_eof and not self.sent_eof)
        return (selectors.EVENT_READ if reads else 0) | (selectors.EVENT_WRITE if writes else 0)

    def step(self, mask: int) -> None:
        """Receives up to 64 KiB, and sends pending bytes, as far as that is possible without blocking. `mask`
        says whether the socket is readable and whether it is writable (`selectors.EVENT_READ`,
        `EVENT_WRITE`)."""
        if mask & selectors.EVENT_READ and self.events & selectors.EVENT_READ:
            data = self.socket.recv(1 << 16)
            self.other.pending += data
            self.received_eof = not data
        if mask & selectors.EVENT_WRITE:
            if self.pending:
                del self.pending[: self.socket.send(self.pending)]
            if not self.pending and self.other.received_eof and not self.sent_eof:
                self.sent_eof = True
                self.socket.shutdown(socket.SHUT_WR)


class ConnectionPairs:
    """All pairs of joined connections: the bytes received on one connection of a pair are sent on the other.
    `relay_port` is the port through which connections reach the server."""

    def __init__(self, relay_port: int) -> None:
        self.relay_port = relay_port
        self.selector = selectors.DefaultSelector()

    def dial(self, port: int, word: str) -> None:
        sockets = [self._connect(port)]
        try:
            relay = ("127.0.0.1", self.relay_port)
            sockets.append(socket.create_connection(relay, timeout=DIAL_SECONDS))
            sockets[1].sendall(word.encode() + b"\n")
        except OSError:
            for each in sockets:
                each.close()
            raise
        connections = [PairedConnection(each) for each in sockets]
        connections[0].other, connections[1].other = connections[1], connections[0]
        for connection in connections:
            connection.socket.setblocking(False)
            self.selector.register(connection.socket, selectors.EVENT_READ, connection)

    @staticmethod
    def _connect(port: int) -> socket.socket:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=DIAL_SECONDS)
        except OSError:
            return socket.create_connection(("::1", port), timeout=DIAL_SECONDS)

    def step(self, connection: PairedConnection, mask: int) -> None:
        """Reads and writes bytes on one connection (see `PairedConnection.step`). Closes both connections of
        the pair when both directions have ended or a connection has failed."""
        pair = (connection, connection.other)
        try:
            connection.step(mask)
            over = all(each.sent_eof for each in pair)
        except BlockingIOError:
            return
        except OSError:
            over = True
        for each in pair:
            if over:
                self._forget(each)
                each.socket.close()
            else:
                self._observe(each)

    def _observe(self, connection: PairedConnection) -> None:
        self._forget(connection)
        if connection.events:
            self.selector.register(connection.socket, connection.events, connection)

    def _forget(self, connection: PairedConnection) -> None:
        try:
            self.selector.unregister(connection.socket)
        except (KeyError, ValueError):
            pass


def serve(pairs: ConnectionPairs) -> None:
    """Reads one request `dial` from standard input, connects to the port of the box that it names and to the
    port relay (a port whose connections reach the server), and joins the two connections in `pairs`. Writes
    the answer to standard output; if this failed, the answer has the error."""
    header, _ = receive()
    answer: dict[str, Any] = {"id": header["id"]}
    try:
        pairs.dial(header["port"], header["word"])
    except (OSError, OverflowError) as error:  # no port has so great a number
        answer["code"], answer["message"] = "unavailable", str(error)
    send(answer)


def main() -> None:
    """Runs the helper program: handles requests to connect to ports, and copies bytes between the joined
    connections, until standard input ends."""
    pairs = ConnectionPairs(int(sys.argv[1]))
    pairs.selector.register(0, selectors.EVENT_READ)
    try:
        while True:
            for key, mask in pairs.selector.select():
                if key.fd == 0:
                    serve(pairs)
                elif key.data.socket.fileno() >= 0:
                    pairs.step(key.data, mask)
    except (EOFError, BrokenPipeError):
        return
