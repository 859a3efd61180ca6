"""The guest's part of the port relay (`Box.forward`): passes network connections of programs in the box to
the host, as messages (frames). The guest is air's program in the box.

A frame's header is `{"op": "relay", "conn": N, "do": …}`. The guest sends `open` for a new connection. Both
sides send `data` and `eof` (end of the data in this direction). `credit` allows the other side to send
`bytes` more bytes. `close` ends a connection after its data, `abort` ends it at once. A connection counts
towards the maximum number of connections until its socket is closed and the host has sent `free`. Sockets are
read in turn, and only while the stream to the host can take more bytes, so a transfer does not delay the
results of commands. Standard library only, Python >= 3.8.
"""

from __future__ import annotations

import collections
import select
import time

from air.sandbox.guest.outbox import FrameSource

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from typing import Any

    Queue = Callable[[dict[str, Any], bytes], None]

PIECE = 1 << 16
BACKLOG = 128
FULL_SECONDS = 0.01


class Stream:
    """One network connection from a program in the box to a forwarded port, with its socket and its state."""

    def __init__(self, ident: int, sock: socket.socket, window: int) -> None:
        self.ident = ident
        self.fd = sock.fileno()
        self.sock: socket.socket | None = sock
        self.credit = window  # bytes that the host still accepts
        self.out: collections.deque[memoryview] = collections.deque()
        self.owed = 0  # bytes that the program has read, for which the host got no credit yet
        self.last = ""  # what to do once all of `out` is written: "eof" or "close"
        self.ended = False  # the program has closed its sending side
        self.queued = False  # the stream is in the queue `Relay.ready` of sockets to read
        self.free = False  # the host has sent "free"


class Relay(FrameSource):
    """Opens loopback ports in the box, and exchanges the data of connections to these ports with the host
    (the air process that started the box), as messages (frames)."""

    def __init__(self, epoll: select.epoll, queue: Queue) -> None:
        self.epoll = epoll
        self.queue = queue
        self.window = self.most = self.last_ident = 0
        self.listeners: dict[int, tuple[socket.socket, int]] = {}
        self.streams: dict[int, Stream] = {}
        self.by_fd: dict[int, Stream] = {}
        self.ready: collections.deque[Stream] = collections.deque()

    def listen(self, header: dict[str, Any], _: bytes) -> dict[str, Any]:
        """Handles the request `listen` of the host: opens a loopback port in the box. Returns the answer
        `{"port": number}`. The request's body is ignored.

        `header` contains `port` (0: any free port), `key` (the number by which the host identifies the port),
        `window` (the number of bytes that each connection may send before the host must allow more) and
        `most` (the maximum number of connections).
        """
        import socket  # too slow to import at every start of a box

        self.window = header["window"]
        self.most = header["most"]
        listener = socket.socket()
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", header["port"]))
            listener.listen(BACKLOG)
            listener.setblocking(False)
            self.epoll.register(listener.fileno(), 0)
        except OSError:
            listener.close()
            raise
        self.listeners[listener.fileno()] = (listener, header["key"])
        self._arm_listeners()
        return {"port": listener.getsockname()[1]}

    def event(self, fd: int, events: int) -> bool:
        """Handles an epoll event of the file descriptor `fd`; `events` is epoll's bit mask. Returns true if
        `fd` belongs to a socket of this relay, else false."""
        if fd in self.listeners:
            self._accept(*self.listeners[fd])
            self._arm_listeners()
            return True
        stream = self.by_fd.get(fd)
        if stream is None:
            return False
        if events & ~select.EPOLLIN and stream.out:
            self._write(stream)
        if events & ~select.EPOLLOUT and stream.sock and not (stream.ended or stream.queued):
            stream.queued = True
            self.ready.append(stream)
        self._arm(stream)
        return True

    def pull(self) -> None:
        """Reads a piece of data from the next connection that has data, and queues the data as a frame
        (message) for the host."""
        if not self.ready:
            return
        stream = self.ready.popleft()
        stream.queued = False
        if stream.sock is None:
            return
        try:
            data = stream.sock.recv(min(PIECE, stream.credit)) if stream.credit else None
        except BlockingIOError:
            data = None
        except OSError:
            self._lose(stream)
            return
        if data:
            stream.credit -= len(data)
            self._say(stream, "data", data)
        elif data is not None:
            stream.ended = True
            self._say(stream, "eof")
        self._arm(stream)

    def take(self, header: dict[str, Any], body: bytes) -> None:
        """Handles a frame (message) that the host sent about the network connection number `header["conn"]`.
        The kind of frame is `header["do"]`: `data` (send `body` to the program), `eof` (end of the data),
        `credit` (the connection may send `header["bytes"]` more bytes to the host), `close`, `abort` (close
        at once) or `free` (the host no longer uses the number). Ignores the frame if the connection is
        gone."""
        stream, do = self.streams.get(header["conn"]), header["do"]
        if stream is None:
            return
        if do == "free":
            stream.free = True
            self._forget(stream)
        elif stream.sock is None:
            return
        elif do == "abort":
            self._close(stream, reset=True)
        elif do == "credit":
            stream.credit += header["bytes"]
            self._arm(stream)
        else:
            if do == "data":
                stream.out.append(memoryview(body))
            else:
                stream.last = do
            self._write(stream)
            self._arm(stream)

    def _accept(self, listener: socket.socket, key: int) -> None:
        import socket

        if len(self.streams) >= self.most:
            return
        try:
            sock, _ = listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError:  # no descriptor is free: the connection waits, without a busy loop
            time.sleep(FULL_SECONDS)
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.last_ident += 1
        stream = Stream(self.last_ident, sock, self.window)
        self.streams[stream.ident] = self.by_fd[stream.fd] = stream
        self.epoll.register(stream.fd, 0)
        self.queue({"op": "relay", "conn": stream.ident, "do": "open", "key": key}, b"")
        self._arm(stream)

    def _arm_listeners(self) -> None:
        if len(self.streams) < self.most:
            for fd in self.listeners:
                self.epoll.modify(fd, select.EPOLLIN | select.EPOLLONESHOT)

    def _arm(self, stream: Stream) -> None:
        """Makes epoll report the next events of the connection's socket. If data for the program is queued,
        epoll reports when the socket can take more. If the host allows this connection to send more bytes
        (credit), epoll reports when the socket has data to read."""
        if stream.sock is None:
            return
        events = select.EPOLLOUT if stream.out else 0
        if stream.credit and not (stream.ended or stream.queued):
            events |= select.EPOLLIN
        if events:
            self.epoll.modify(stream.fd, events | select.EPOLLONESHOT)

    def _write(self, stream: Stream) -> None:
        """Writes as many of the queued bytes as the socket accepts. When all are written, also does what the
        host requested for the end: `eof` or `close`."""
        sock = stream.sock
        assert sock is not None
        try:
            while stream.out:
                sent = sock.send(stream.out[0])
                stream.owed += sent
                stream.out[0] = stream.out[0][sent:]
                if not stream.out[0]:
                    stream.out.popleft()
            if stream.last == "eof":
                sock.shutdown(1)
        except BlockingIOError:
            pass
        except OSError:
            self._lose(stream)
            return
        if stream.last == "close" and not stream.out:
            self._close(stream)
        elif stream.owed >= self.window // 2:
            self._say(stream, "credit", bytes=stream.owed)
            stream.owed = 0

    def _lose(self, stream: Stream) -> None:
        """Closes a network connection whose program in the box has closed or reset it, and reports this to
        the host."""
        self._close(stream)
        self._say(stream, "close")

    def _close(self, stream: Stream, *, reset: bool = False) -> None:
        assert stream.sock is not None
        if reset:
            import socket
            import struct

            stream.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.epoll.unregister(stream.fd)
        del self.by_fd[stream.fd]
        stream.sock.close()
        stream.sock = None
        stream.out.clear()
        self._forget(stream)

    def _forget(self, stream: Stream) -> None:
        """Forgets a network connection if its socket is closed and the host has sent the frame `free` (the
        host has no more use for the connection's number). The connection then no longer counts towards the
        maximum number of connections."""
        if stream.free and stream.sock is None:
            del self.streams[stream.ident]
            self._arm_listeners()

    def _say(self, stream: Stream, do: str, body: bytes = b"", **more: int) -> None:
        self.queue(dict(more, op="relay", conn=stream.ident, do=do), body)
