"""A container whose first process is a program of ours on the attached stream: a box or a helper."""

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
    """What can be closed."""

    async def close(self) -> None:
        """Takes it away; BoxDiedError if something stays."""


class Attached:
    """A container whose first process is a program of ours that reads the attached stream."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.container = ""
        """The engine's id of the container, or its name; empty until it may exist."""
        self._socket: socket.socket | None = None
        self._connection: Connection | None = None
        self._pid = 0

    async def start(self, arguments: dict[str, Any], first: bytes) -> Connection:
        """Starts the container and speaks to it; whatever it raises, `close` takes all away.

        Args:
            arguments: of `create_container`.
            first: what the program is told first.
        """
        await engine.in_thread(lambda: self._launch(arguments, first))
        assert self._socket is not None
        reader, writer = await asyncio.open_connection(sock=self._socket, limit=_MIB)
        self._connection = Connection(reader, writer, stderr=None, name=self.name)
        return self._connection

    def _launch(self, arguments: dict[str, Any], first: bytes) -> None:
        """Creates, attaches, starts, speaks. The program hears its first word from this thread: its
        patience is shorter than what an event loop may be busy for."""
        client = engine.client()
        try:
            self.container = create(arguments)
        except requests.RequestException as error:
            if not engine_missing(str(error)):  # it was asked, and only its answer is lost
                self.container = self.name
            raise
        params = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
        self._socket = taken(client.attach_socket(self.container, params=params))
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
    """Closes what did not start: why it did not matters more than what is left, if anything is."""
    try:
        await what.close()
    except BoxDiedError as left:
        _LOG.warning("%s", left)


def taken(stream: Any) -> socket.socket:
    """The socket under a stream of the engine's client. Closes the stream, but not the socket.

    Raises:
        BoxStartError: the way to the engine is encrypted (TLS, SSH), and its socket would go past that.
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
    """Creates a container, as this engine has to be told; returns its id. Blocks."""
    client = engine.client()
    if podman.answers(client):
        arguments = podman.adapted(arguments)
    return str(client.create_container(**arguments)["Id"])
