"""The helper program `ports`: joins connections to programs in a sandbox with connections to the server.

It runs in the box, with the number of the port relay (through which the box reaches the server) as its
argument. A request `dial` names a port of the box and a secret word. The program connects to the port and to
the port relay, sends the word as one line to the relay, and then copies bytes in both directions. Standard
library only, Python >= 3.8, and no import of `air` except the modules beside it.
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


class End:
    """One of two connections that are joined: bytes received on either are sent on the other. Holds the bytes
    that must still be sent on this one."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.pending = bytearray()
        self.other: End = self
        self.heard_end = self.sent_end = False

    @property
    def events(self) -> int:
        reads = not self.heard_end and len(self.other.pending) < ROOM
        writes = bool(self.pending) or (self.other.heard_end and not self.sent_end)
        return (selectors.EVENT_READ if reads else 0) | (selectors.EVENT_WRITE if writes else 0)

    def step(self, mask: int) -> None:
        """Reads and writes as many bytes as possible without blocking. `mask` tells whether the socket is
        readable and writable."""
        if mask & selectors.EVENT_READ and self.events & selectors.EVENT_READ:
            data = self.socket.recv(1 << 16)
            self.other.pending += data
            self.heard_end = not data
        if mask & selectors.EVENT_WRITE:
            if self.pending:
                del self.pending[: self.socket.send(self.pending)]
            if not self.pending and self.other.heard_end and not self.sent_end:
                self.sent_end = True
                self.socket.shutdown(socket.SHUT_WR)


class Joints:
    """All pairs of joined connections: bytes received on one connection of a pair are sent on the other."""

    def __init__(self, relay_port: int) -> None:
        self.relay_port = relay_port
        self.selector = selectors.DefaultSelector()

    def dial(self, port: int, word: str) -> None:
        near = self._connect(port)
        try:
            far = socket.create_connection(("127.0.0.1", self.relay_port), timeout=DIAL_SECONDS)
        except OSError:
            near.close()
            raise
        far.sendall(word.encode() + b"\n")
        ends = [End(near), End(far)]
        ends[0].other, ends[1].other = ends[1], ends[0]
        for end in ends:
            end.socket.setblocking(False)
            self.selector.register(end.socket, selectors.EVENT_READ, end)

    @staticmethod
    def _connect(port: int) -> socket.socket:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=DIAL_SECONDS)
        except OSError:
            return socket.create_connection(("::1", port), timeout=DIAL_SECONDS)

    def step(self, end: End, mask: int) -> None:
        """Moves bytes on one connection; closes both connections of the pair once both directions have ended,
        or one has failed."""
        pair = (end, end.other)
        try:
            end.step(mask)
            over = all(each.sent_end for each in pair)
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

    def _observe(self, end: End) -> None:
        self._forget(end)
        if end.events:
            self.selector.register(end.socket, end.events, end)

    def _forget(self, end: End) -> None:
        try:
            self.selector.unregister(end.socket)
        except (KeyError, ValueError):
            pass


def serve(joints: Joints) -> None:
    """Reads one request `dial` from standard input, connects to the port that it names, adds the joined
    pair of connections to `joints`, which keeps it open, and writes to standard output whether this
    worked."""
    header, _ = receive()
    answer: dict[str, Any] = {"id": header["id"]}
    try:
        joints.dial(header["port"], header["word"])
    except (OSError, OverflowError) as error:  # no port has so great a number
        answer["code"], answer["message"] = "unavailable", str(error)
    send(answer)


def main() -> None:
    """Handles requests to connect to ports, and copies bytes between the joined connections, until standard
    input ends."""
    joints = Joints(int(sys.argv[1]))
    joints.selector.register(0, selectors.EVENT_READ)
    try:
        while True:
            for key, mask in joints.selector.select():
                if key.fd == 0:
                    serve(joints)
                elif key.data.socket.fileno() >= 0:
                    joints.step(key.data, mask)
    except (EOFError, BrokenPipeError):
        return
