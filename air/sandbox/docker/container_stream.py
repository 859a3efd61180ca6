"""A container whose first process is our program, on the attached stream: a box or a helper."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import Any, Protocol

import requests

from air.errors import BoxDiedError, BoxStartError
from air.sandbox.docker import engine, podman
from air.sandbox.docker.engine_errors import engine_missing
from air.sandbox.wire.connection import Connection
from air.sandbox.wire.guest_box import START_SECONDS

_MIB = 1 << 20
_LOG = logging.getLogger(__name__)


class Closable(Protocol):
    """An object that can be closed."""

    async def close(self) -> None:
        """Removes it; raises BoxDiedError if something remains."""


class Attached:
    """A container whose first process is our program, which reads the attached stream."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.container = ""
        """The engine's id of the container, or its name; empty until it may exist."""
        self._socket: socket.socket | None = None
        self._connection: Connection | None = None
        self._pid = 0

    async def start(self, arguments: dict[str, Any], first: bytes) -> Connection:
        """Starts the container and connects to its program. After any error, call `close`.

        Args:
            arguments: of `create_container`.
            first: the first bytes for the program.
        """
        await engine.in_thread(lambda: self._launch(arguments, first))
        assert self._socket is not None
        reader, writer = await asyncio.open_connection(sock=self._socket, limit=_MIB)
        self._connection = Connection(reader, writer, stderr=None, name=self.name)
        return self._connection

    def _launch(self, arguments: dict[str, Any], first: bytes) -> None:
        """Creates, attaches, starts, and sends `first`. Sent from this thread, since the program waits for
        a shorter time than an event loop may be busy."""
        client = engine.client()
        try:
            self.container = create(arguments)
        except requests.RequestException as error:
            if not engine_missing(str(error)):  # it may exist: only the answer was lost
                self.container = self.name
            raise
        params = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
        self._socket = detach_socket(client.attach_socket(self.container, params=params))
        client.start(self.container)
        self._socket.settimeout(START_SECONDS)
        self._socket.sendall(first)
        self._socket.setblocking(False)

    async def pid(self) -> int:
        """The process id of its first process, as the engine's host sees it."""
        if not self._pid:
            self._pid = int((await engine.inspected(self.container))["State"]["Pid"])
        return self._pid

    async def close(self) -> None:
        """Ends the container, and returns when it is gone.

        Raises:
            BoxDiedError: it could not be removed.
        """
        if self._connection is not None:
            await self._connection.close()
        elif self._socket is not None:
            self._socket.close()
        if self.container:
            try:
                await engine.in_thread(lambda: engine.remove(self.container))
            except engine.FOREIGN as error:
                raise BoxDiedError(f"box {self.name} could not be removed: {error}") from error


async def abandon(what: Closable) -> None:
    """Closes an object that did not start; only logs its error, since the caller has a better one."""
    try:
        await what.close()
    except BoxDiedError as error:
        _LOG.warning("%s", error)


def detach_socket(stream: Any) -> socket.socket:
    """Takes the socket out of a stream of the client, and closes the stream.

    Raises:
        BoxStartError: the connection to the engine is encrypted (TLS, SSH), so its socket cannot be used.
    """
    try:
        if type(getattr(stream, "_sock", stream)) is not socket.socket:
            raise BoxStartError(
                "the connection to the engine (DOCKER_HOST) is encrypted, which boxes cannot use: run air "
                "on the engine's machine, or forward the engine's socket with `ssh -L`"
            )
        return socket.socket(fileno=os.dup(stream.fileno()))
    finally:
        stream._response.close()
        stream.close()


def create(arguments: dict[str, Any]) -> str:
    """Creates a container, by Docker or by Podman; returns its id. Blocks."""
    client = engine.client()
    if podman.answers(client):
        arguments = podman.adapted(arguments)
    return str(client.create_container(**arguments)["Id"])
