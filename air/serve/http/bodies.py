"""Limits request bodies: each must arrive at a minimum rate, and the total size of all bodies in memory has a
maximum."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from starlette.types import Message, Receive, Scope

from air.serve.http.metrics import Metrics
from air.serve.http.settings import ListenConfig

PACE = 1 << 16
"""A client gets one second for each `PACE` bytes of a request's body, in addition to the setting
`body_seconds`. So a large body has more time, but must arrive at a minimum rate."""
LATE_SECONDS = 1.0
"""Seconds for which the server still tries to read a body after the body's time limit, before it refuses the
request. The data may already have arrived while the server was busy with other work."""
_BODY = "air.body"


@dataclass
class BodyRefused(Exception):
    """Error: the server does not read a request's body to its end, and responds with the HTTP status `status`
    and the message `text`."""

    status: int
    text: str


class Bodies:
    """The request bodies that one server holds in memory. `kept` is their total size in bytes."""

    def __init__(self, config: ListenConfig, metrics: Metrics) -> None:
        self.config = config
        self.kept = 0
        metrics.gauge(
            "air_serve_body_bytes", "Bytes of the bodies of running requests.", lambda: self.kept
        )


class Body:
    """The body of one request. The application calls this object instead of the request's ASGI function
    `receive`, so that the body's speed and size are checked.

    A call raises BodyRefused if the client sends too slowly, or if the bodies of all requests in memory
    exceed the server's limit (the setting `max_bodies_mb`).
    """

    def __init__(self, bodies: Bodies, receive: Receive, scope: Scope) -> None:
        self._bodies, self._receive = bodies, receive
        self._size = 0
        self._seconds_waited = 0.0
        """Seconds that the server has spent waiting for data from the client, without the time of the
        server's own work."""
        self._complete = False
        self.paced = self.kept = True
        scope[_BODY] = self

    async def __call__(self) -> Message:
        if self._complete or not self.paced:
            return await self._receive()
        message = await self._piece()
        if message["type"] == "http.request":
            self._complete = not message.get("more_body", False)
            self._keep(len(message.get("body", b"")))
        return message

    async def _piece(self) -> Message:
        since = time.monotonic()
        left = self._bodies.config.body_seconds + self._size / PACE - self._seconds_waited
        for seconds in (left, LATE_SECONDS):
            try:
                async with asyncio.timeout(max(0.0, seconds)):
                    message = await self._receive()
            except TimeoutError:
                continue
            self._seconds_waited += time.monotonic() - since
            return message
        raise BodyRefused(408, f"the body arrives too slowly: {self._size} bytes so far")

    def _keep(self, size: int) -> None:
        self._size += size
        if self.kept:
            self._bodies.kept += size
            most = self._bodies.config.max_bodies_mb
            if self._bodies.kept > most * 2**20:
                text = f"the bodies of the running requests exceed {most:g} MiB: try again later"
                raise BodyRefused(503, text)

    def release(self) -> None:
        """Subtracts this body's size from the total size of the bodies in memory. It must be called when the
        request ends, or as soon as the body does not stay in memory. Further calls do nothing."""
        if self.kept:
            self._bodies.kept -= self._size
            self.kept = False


def mark_body_forwarded(scope: Scope, *, endless: bool = False) -> None:
    """Declares that the handler of this request forwards the body piece by piece, for instance to a box
    (container). The body then does not count towards the limit on all bodies in memory.

    With `endless`, the body is a stream without a time limit: the client may pause for as long as it
    likes.
    """
    body: Body | None = scope.get(_BODY)
    if body is not None:
        body.release()
        body.paced = not endless
