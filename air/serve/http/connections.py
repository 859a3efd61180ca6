"""Limits the number of a server's connections, and the time that a client may take on each of them.

Without this module, the HTTP server uvicorn would wait without limit for a request's headers, and for a
client that does not read its response.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from air.serve.http.bodies import PACE
from air.serve.http.metrics import Metrics
from air.serve.http.settings import ListenConfig

HEAD_BYTES = 1 << 16
"""The maximum size in bytes of a request's first line and headers together."""
LINGER_SECONDS = 5.0
"""Seconds for which a connection stays open after the server has refused a request on it, or has answered
before the request's whole body came. Data that the client sends meanwhile is discarded. If the server closed
the connection at once, the client might lose the response before reading it."""
MOST_REFUSED = 100
"""If there are too many connections, the server refuses further ones with an error response, and closes them
a little later. While this number of them is open, it closes further ones at once, without a response."""
EVICTED_SECONDS = 10.0
"""If a connection has not sent the complete headers of a request for this number of seconds, the server may
close it when a new connection needs its place."""


class Connections:
    """The open connections of one server, with the server's limits on them."""

    def __init__(self, config: ListenConfig, metrics: Metrics) -> None:
        self.config, self._metrics = config, metrics
        self.open: set[Any] = set()
        """All open connections, including WebSockets. The set belongs to uvicorn, which keeps it up to
        date."""
        self.waiting: dict[Connection, float] = {}
        """The connections on which no request runs, each with the monotonic time at which it began to wait
        for (the rest of) a request's headers. The connection that has waited longest comes first."""
        self.unread: dict[Connection, None] = {}
        """The connections with a finished response of which the client still has to read more than a few KiB,
        which are in memory. The oldest response comes first."""
        metrics.gauge(
            "air_serve_answer_bytes",
            "Bytes of responses that clients have not read.",
            lambda: sum(each.unread for each in self.unread),
        )
        metrics.gauge("air_serve_connections", "Open connections.", lambda: len(self.open))
        metrics.gauge(
            "air_serve_connections_waiting",
            "Open connections without a running request.",
            lambda: len(self.waiting),
        )

    def protocol(self, **options: Any) -> Connection:
        """Creates and returns the object that handles a new connection (an asyncio protocol). uvicorn calls
        this method once for each connection, with its own arguments `options`."""
        self.open = options["server_state"].connections
        return Connection(self, **options)

    def count_closed(self, why: str) -> None:
        """Counts, in the metrics, one connection that the server has closed (the caller closes it). `why` is
        a short text, the reason."""
        text = "Connections that the server closed, by why."
        self._metrics.add("air_serve_connections_closed_total", text, why=why)

    def make_room(self) -> bool:
        """Makes room for a new connection, and returns whether it may stay open. If there are more
        connections than allowed, closes an old one: it must be idle, or must have waited longer than
        `EVICTED_SECONDS` for complete headers; the one that has waited longest is chosen. Returns False if
        there is no such connection."""
        if len(self.open) <= self.config.max_connections:
            return True
        for connection, since in self.waiting.items():
            if connection.idle or time.monotonic() - since > EVICTED_SECONDS:
                connection.cut("evicted")
                return True
        return False

    def add_unread(self, connection: Connection) -> None:
        """Notes that a response on this connection is finished, but is not read yet. If such responses
        together exceed the limit (the setting `max_bodies_mb`), closes the connections with the oldest ones.
        The newest response stays in any case, so that a client can get one that is larger than the limit."""
        self.unread.pop(connection, None)
        self.unread[connection] = None
        sizes = {each: each.unread for each in self.unread}
        total = sum(sizes.values())
        for each, size in sizes.items():
            if total <= self.config.max_bodies_mb * 2**20 or each is connection:
                break
            each.cut("too many answers not taken")
            total -= size


class Connection(HttpToolsProtocol):
    """One connection of a client. It limits the time in which the client must send requests and read
    responses."""

    def __init__(self, all_of_them: Connections, **options: Any) -> None:
        super().__init__(**options)
        self._all = all_of_them
        self._timer: asyncio.TimerHandle | None = None
        self._reading_timer: asyncio.TimerHandle | None = None
        """The timer that checks how fast the client reads a finished response. Unlike `_timer`, it also runs
        while the next request arrives or runs."""
        self._in_head, self._in_body = True, False
        self._head_bytes = 0
        """While headers arrive: the number of bytes received since the request began. While a body arrives:
        the number of bytes received since the last byte of its content (a body can also have other bytes,
        such as chunk extensions). Above `HEAD_BYTES`, the request is refused or the connection is closed."""
        self._refused = False
        self.idle = False
        """Whether the connection is idle: the last request is finished, and no further one has begun."""

    @property
    def unread(self) -> int:
        """The number of bytes that the server has sent on this connection, but that are still in its
        memory."""
        return self.transport.get_write_buffer_size()

    # What asyncio calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._all.make_room():
            self._await_head()
        elif len(self._all.open) > self._all.config.max_connections + MOST_REFUSED:
            self.cut("503")
        else:
            self._refuse(503, f"all {self._all.config.max_connections} connections are in use")

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone()
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_reading_timer()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self.idle:  # a further request begins
            self._await_head()
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes <= HEAD_BYTES or self.transport.is_closing():
            return
        if self._in_head:
            self._refuse(431, f"the headers exceed {HEAD_BYTES >> 10} KiB")
        elif self._in_body:  # headers behind the body, or notes at its pieces
            self.cut("body without bytes")

    def _await_head(self) -> None:
        """Marks the connection as waiting for a request's headers, and starts the time limit for them."""
        self.idle, self._in_head, self._head_bytes = False, True, 0
        self._all.waiting.pop(self, None)
        self._all.waiting[self] = time.monotonic()
        self._after(self._all.config.head_seconds, self._head_is_late)

    def _head_is_late(self) -> None:
        if self._head_bytes:
            self._refuse(408, "the headers arrive too slowly")
        else:
            self.cut("no request")

    # What the parser and the running request call

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if not self._in_head:  # a client sends its next request before it has the answer
            self._in_head, self._head_bytes = True, 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # no handler wants those behind a body
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)

    def on_headers_complete(self) -> None:
        self._in_head, self._in_body = False, True
        self._all.waiting.pop(self, None)
        self._stop_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_body = False
        if self.cycle is not None and self.cycle.response_complete and not self.pipeline:
            self._become_idle()

    def on_response_complete(self) -> None:
        further = bool(self.pipeline)
        super().on_response_complete()
        if self.flow.write_paused:  # nothing more is written until `resume_writing` is called
            self._all.add_unread(self)
            self._check_pace()
        if self.transport.is_closing():
            self._when_answer_read(self.transport.abort)
        elif self._in_body and not further:
            self._after(LINGER_SECONDS, lambda: self.cut("body after the answer"))
        elif not further:
            self._become_idle()

    def handle_websocket_upgrade(self) -> None:
        self._gone()
        super().handle_websocket_upgrade()

    def timeout_keep_alive_handler(self) -> None:
        """Does nothing. uvicorn calls this method when its own keep-alive timer ends; that timer is not used.
        The timer that `_become_idle` starts also detects clients that do not read their response."""

    # Waiting, and its end

    def _become_idle(self) -> None:
        """Marks the connection as idle, and starts the time limit after which an idle connection is closed;
        if the client is still reading the last response, this limit starts later, when it has read all. If
        the next request has already begun, waits for its headers instead."""
        if self._in_head:  # it has begun
            self._await_head()
            return
        self.idle = True
        self._all.waiting[self] = time.monotonic()
        if self.unread:
            self._when_answer_read(self._keep_alive)
        else:
            self._keep_alive()

    def _keep_alive(self) -> None:
        self._after(self._all.config.keep_alive_seconds, lambda: self.cut("idle"))

    def _when_answer_read(self, then: Callable[[], object]) -> None:
        """Arranges that `then` is called when the client has read the whole response. Checks this every
        `answer_seconds` (a setting), and closes the connection if the client has read nothing since the last
        check."""
        before = self.unread

        def look() -> None:
            now = self.unread
            if not now:
                then()
            elif now < before:
                self._when_answer_read(then)
            else:
                self.cut("answer not taken")

        self._after(self._all.config.answer_seconds, look)

    def _check_pace(self) -> None:
        """Checks every `answer_seconds` (a setting) that the client has read at least `PACE` bytes per second
        since the last check, and closes the connection otherwise. Ends in `resume_writing`, when the client
        has read almost all."""
        before, seconds = self.unread, self._all.config.answer_seconds

        def look() -> None:
            if before - self.unread >= PACE * seconds:
                self._check_pace()
            else:
                self.cut("answer not taken")

        self._reading_timer = self.loop.call_later(seconds, look)

    def cut(self, why: str) -> None:
        """Closes the connection at once, even while a request runs. `why` is a short text, the reason, which
        the metrics show."""
        self._all.count_closed(why)
        self._gone()
        if self.unread:
            self.transport.abort()
        else:
            self.transport.close()

    def _refuse(self, status: int, text: str) -> None:
        """Sends an error response with this status and text, without calling the application. Closes the
        connection soon afterwards."""
        self._refused = True
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False  # a request runs: the connection ends with its answer
            return
        self._all.count_closed(str(status))
        body = json.dumps({"detail": text, "code": status, "message": text}).encode()
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
        )
        head += f"retry-after: 1\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(head.encode() + body)
        self._all.waiting.pop(self, None)
        # Not at once: closing a connection with unread data can destroy the response before it is read.
        self._after(LINGER_SECONDS, self.transport.abort)

    def _gone(self) -> None:
        self._stop_timer()
        self._stop_reading_timer()
        self.idle = False
        self._all.waiting.pop(self, None)

    def _after(self, seconds: float, act: Callable[[], object]) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, act)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_reading_timer(self) -> None:
        self._all.unread.pop(self, None)
        if self._reading_timer is not None:
            self._reading_timer.cancel()
            self._reading_timer = None
