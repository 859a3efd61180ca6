"""`AttachedContainer`: a container (a box or a helper container) whose first process exchanges messages
(frames) with this process over a stream."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

import requests

from air.errors import AirError, BoxDiedError, BoxStartError
from air.sandbox.contract.box import Box
from air.sandbox.docker import engine, podman
from air.sandbox.docker.engine_errors import engine_missing
from air.sandbox.wire.connection import Connection
from air.sandbox.wire.guest_box import START_SECONDS

KEPT_EVENTS = 256
"""Number of past events that Docker remembers. Air reads the events to find out what ended a container. If
Docker is restarted, it forgets all earlier events."""
EVENT_SECONDS = 1.0
"""Seconds to wait for the container engine's events about a container that has ended, because the engine
reports an event slightly after it happened."""
_MIB = 1 << 20
_LOG = logging.getLogger(__name__)


class AttachedContainer:
    """A container (a box or a helper container) whose first process runs a program of air, and the stream
    over which this process exchanges messages (frames) with that program."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.container = ""
        """The container's id or name. Empty as long as it is certain that no container exists."""
        self._socket: socket.socket | None = None
        self._connection: Connection | None = None
        self._pid = 0
        self._born = time.time()

    async def start(self, arguments: dict[str, Any], first: bytes) -> Connection:
        """Starts the container and returns the connection to its program. After any error, call `close`.

        `arguments` are those of the Docker SDK's `create_container`. `first` are the first bytes that are
        sent to the program's standard input.
        """
        await engine.in_thread(lambda: self._launch(arguments, first))
        assert self._socket is not None
        reader, writer = await asyncio.open_connection(sock=self._socket, limit=_MIB)
        self._connection = Connection(reader, writer, stderr=None, name=self.name)
        return self._connection

    def _launch(self, arguments: dict[str, Any], first: bytes) -> None:
        """Creates and starts a container, and sends the bytes `first` to its program. `arguments` are those
        of the Docker SDK's `create_container`. Blocks.

        This runs in a thread, because the program waits only a short time for `first`, and the event loop may
        be busy for longer.
        """
        client = engine.client()
        try:
            self.container = create(arguments)
        except requests.RequestException as error:
            if not engine_missing(
                str(error)
            ):  # perhaps only the answer was lost, and the container exists
                self.container = self.name
            raise
        params = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
        self._socket = detach_socket(client.attach_socket(self.container, params=params))
        client.start(self.container)
        self._socket.settimeout(START_SECONDS)
        self._socket.sendall(first)
        self._socket.setblocking(False)

    async def pid(self) -> int:
        """Returns the process id of the container's first process on the container engine's host."""
        if not self._pid:
            self._pid = int((await engine.inspected(self.container))["State"]["Pid"])
        return self._pid

    async def outside_cause(self) -> str:
        """Returns what ended the container, as text, if the cause lies outside of the container, such as a
        request to the container engine or the engine's restart. Returns "" if no such cause is known."""
        return await engine.in_thread(self._outside_cause)

    def _outside_cause(self) -> str:
        try:
            client = engine.client()
            client.ping()
        except (*engine.FOREIGN, AirError) as error:
            return f"the container engine does not answer ({engine.reason(error)})"
        until = f"{time.time() + EVENT_SECONDS:.9f}"
        try:
            events = list(client.events(since=f"{self._born:.9f}", until=until, decode=True))
        except engine.FOREIGN as error:
            if podman.answers(client):  # Podman may keep no events
                return ""
            return f"the container engine does not answer ({engine.reason(error)})"
        return outside_cause(events, self.container, complete=not podman.answers(client))

    async def close(self) -> None:
        """Closes the stream to the container's program and removes the container; returns when the container
        is gone. Raises BoxDiedError if that fails."""
        if self._connection is not None:
            await self._connection.close()
        elif self._socket is not None:
            self._socket.close()
        if self.container:
            try:
                await engine.in_thread(lambda: engine.remove(self.container))
            except engine.FOREIGN as error:
                raise BoxDiedError(f"box {self.name} could not be removed: {error}") from error


def outside_cause(events: Sequence[Mapping[str, Any]], container: str, *, complete: bool) -> str:
    """Returns what ended a container, as text, if `events` show a cause outside of the container; else "".

    `events` are the container engine's events since the container's start. `container` is the container's id
    or name. An event `kill` shows that a request to the engine ended the container. A missing event `start`
    shows that the engine was restarted, but only if `complete` is true: the engine keeps its last
    `KEPT_EVENTS` events until it ends itself, as Docker does and Podman may not. Commands in a container can
    cause neither.
    """
    actors = [event.get("Actor", {}) for event in events]
    names = [(actor.get("ID"), actor.get("Attributes", {}).get("name")) for actor in actors]
    own = [event for event, known in zip(events, names, strict=True) if container in known]
    actions = [event.get("Action", "") for event in own]
    if "kill" in actions:
        signal = own[actions.index("kill")]["Actor"].get("Attributes", {}).get("signal", "?")
        return f"a request to the container engine ended it (signal {signal})"
    if complete and "start" not in actions and len(events) < KEPT_EVENTS:
        return "the container engine was restarted"
    return ""


async def close_failed_start(what: AttachedContainer | Box) -> None:
    """Closes a box or container whose start has failed. If closing fails, logs the error instead of raising
    it, because the start's own error matters more."""
    try:
        await what.close()
    except BoxDiedError as error:
        _LOG.warning("%s", error)


def detach_socket(stream: Any) -> socket.socket:
    """Closes a stream of the Docker SDK, and returns a duplicate of the stream's socket, which stays open.

    Raises BoxStartError if the connection to the container engine is encrypted (TLS, SSH): then its socket
    carries no plain bytes.
    """
    try:
        if type(getattr(stream, "_sock", stream)) is not socket.socket:
            raise BoxStartError(
                "the connection to the Docker engine (DOCKER_HOST) is encrypted, which boxes cannot use: run "
                "air on the Docker engine's machine, or forward its socket with `ssh -L`"
            )
        return socket.socket(fileno=os.dup(stream.fileno()))
    finally:
        stream._response.close()
        stream.close()


def create(arguments: dict[str, Any]) -> str:
    """Creates a container and returns its id. `arguments` are written for Docker; if the container engine is
    Podman, this function adapts them. Blocks."""
    client = engine.client()
    if podman.answers(client):
        arguments = podman.adapted(arguments)
    return str(client.create_container(**arguments)["Id"])
