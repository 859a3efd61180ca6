"""Limits for the bodies of requests: each must arrive fast enough, and the sum of all kept bodies is
bounded."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from starlette.types import Message, Receive, Scope

from air.serve.metrics import Metrics
from air.serve.settings import ListenConfig

PACE = 1 << 16
"""The client gets one more second for each `PACE` bytes of a body that it has sent."""
LATE_SECONDS = 1.0
"""Seconds for which the server waits once more for a late body, because the server itself may have been
slow."""
_BODY = "air.body"


@dataclass
class BodyRefused(Exception):
    """Error: a body is not read any further. The request is answered with `status` and `text`."""

    status: int
    text: str


class Bodies:
    """The bodies that one server has read and still keeps."""

    def __init__(self, config: ListenConfig, metrics: Metrics) -> None:
        self.config = config
        self.kept = 0
        metrics.gauge(
            "air_serve_body_bytes", "Bytes of the bodies of running requests.", lambda: self.kept
        )


class Body:
    """The body of one request. The application calls this object as its ASGI function `receive`.

    Raises BodyRefused if the client sends too slowly, or if the server keeps too many bytes altogether.
    """

    def __init__(self, bodies: Bodies, receive: Receive, scope: Scope) -> None:
        self._bodies, self._receive = bodies, receive
        self._size = 0
        self._taken = 0.0
        """Seconds for which the server has waited for pieces. Its own work between them does not count."""
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
        left = self._bodies.config.body_seconds + self._size / PACE - self._taken
        for seconds in (left, LATE_SECONDS):
            try:
                async with asyncio.timeout(max(0.0, seconds)):
                    message = await self._receive()
            except TimeoutError:
                continue
            self._taken += time.monotonic() - since
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
        """Notes that the request has ended."""
        if self.kept:
            self._bodies.kept -= self._size
            self.kept = False


def passed_on(scope: Scope, *, endless: bool = False) -> None:
    """Tells the server that a request's handler passes the body on piece by piece, and keeps no part of it.

    `endless`: the body is a stream, whose client may send nothing for any time.
    """
    body: Body | None = scope.get(_BODY)
    if body is not None:
        body.release()
        body.paced = not endless
