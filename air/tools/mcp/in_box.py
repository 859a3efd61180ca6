"""Connects to a server of the Model Context Protocol (MCP) that runs as a program in a box (sandbox) and
communicates over its standard input and output.

The box needs no other software than the program. The program is not trusted: the length of its lines and
the amount of output per call are limited. Between calls its output is not read: a program that prints much
then blocks until the next call.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from air.errors import BoxCommandError, BoxDiedError
from air.sandbox.contract.box import Box, Command
from air.tools.mcp.connection import CALL_BYTES, MESSAGE_BYTES, ConnectionLost, short

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.client._transport import TransportStreams
    from mcp.shared.message import SessionMessage

    from air.sandbox.contract.running_command import RunningCommand

MOST_NOISE = 1000
"""During one call, a program may print at most this number of lines that are not protocol messages, such as
log lines."""
_KILL = 9
_STDERR = 500


class ProgramChannel:
    """A `Channel` (transport to an MCP server) over the standard input and output of one program in a box
    (sandbox)."""

    def __init__(
        self,
        box: Box,
        command: Command,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
    ) -> None:
        self._box, self._command = box, command
        self._env, self._cwd, self._user = env, cwd, user
        self._wanted = asyncio.Event()
        self._left = self._noise = 0
        self._stderr = b""
        self.reason = self.status = ""
        self.broken = asyncio.Event()

    def listen(self) -> None:
        """Called when a request begins: allows up to `CALL_BYTES` of the program's output to be read from now
        on."""
        self._left, self._noise = CALL_BYTES, MOST_NOISE
        self._wanted.set()

    def pause(self) -> None:
        """Stops reading the program's output until the next `listen`."""
        self._wanted.clear()

    @asynccontextmanager
    async def streams(self) -> AsyncIterator[TransportStreams]:
        """Context manager that starts the program and yields its message streams. At the end it kills the
        program and every process that the program started. Raises ConnectionLost if the program cannot be
        started."""
        import anyio
        from mcp.shared.message import SessionMessage

        try:
            running = await self._box.start(
                self._command, stdin=True, env=self._env, cwd=self._cwd, user=self._user
            )
        except BoxCommandError as error:
            raise ConnectionLost(f"it cannot be started: {error}") from error
        self._stderr = b""  # what an earlier program wrote is no reason for the end of this one
        to_session, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](0)
        try:
            async with (
                to_session,
                incoming,
                outgoing,
                from_session,
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(self._read, running, to_session)
                tasks.start_soon(self._write, running, from_session)
                yield incoming, outgoing
                tasks.cancel_scope.cancel()
        finally:
            # If the program has ended, or the box, it needs no end; the box's user notices the box's.
            with contextlib.suppress(BoxCommandError, BoxDiedError):
                await running.signal(_KILL)

    async def _read(
        self,
        running: RunningCommand,
        session: MemoryObjectSendStream[SessionMessage | Exception],
    ) -> None:
        """Forwards the program's messages to the session until the program's output ends. Never returns
        normally: raises ConnectionLost if the program ended or exceeded a limit, or the error with which its
        box (sandbox) failed."""
        lines = _Lines()
        async for stream, data in running.output():
            await self._wanted.wait()
            self._left -= len(data)
            if self._left < 0:
                raise ConnectionLost(f"it printed more than {CALL_BYTES // 2**20} MiB in one call")
            if stream == "stderr":
                self._stderr = (self._stderr + data)[-_STDERR:]
                continue
            for line in lines.add(data):
                await self._pass_on(line, session)
        result = await running.wait()
        if not result.began:
            raise ConnectionLost(f"it cannot be started: {short(result.text) or 'no such program'}")
        end = f"signal {result.signal}" if result.signal else f"exit {result.code}"
        said = short(self._stderr.decode("utf-8", "replace"))
        raise ConnectionLost(f"its program has ended ({end}){': ' if said else ''}{said}")

    async def _pass_on(
        self, line: bytes, session: MemoryObjectSendStream[SessionMessage | Exception]
    ) -> None:
        import mcp_types
        from mcp.shared.message import SessionMessage

        if not line.strip():
            return
        try:
            message = mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False)
        except (
            ValueError
        ):  # programs print other things, too; many of them mean that it is no server
            self._noise -= 1
            if self._noise < 0:
                raise ConnectionLost(
                    f"it printed more than {MOST_NOISE} lines that are no MCP messages; on standard output, "
                    "an MCP server may print only these"
                ) from None
            return
        await session.send(SessionMessage(message))

    async def _write(
        self, running: RunningCommand, messages: MemoryObjectReceiveStream[SessionMessage]
    ) -> None:
        try:
            async for message in messages:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                await running.write(text.encode() + b"\n")
        except BoxCommandError:  # it has ended or closed its input: `_read` says which
            await running.wait()


class _Lines:
    """Splits a stream of bytes into lines. Raises ConnectionLost if a line is longer than `MESSAGE_BYTES`."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, data: bytes) -> list[bytes]:
        """Appends `data` to the stream and returns the lines that are complete now, without their line
        feeds."""
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = b"".join([*self._parts, lines[0]])
            self._parts, self._size = [], 0
        self._parts.append(rest)
        self._size += len(rest)
        if max(map(len, [*lines, b""])) > MESSAGE_BYTES or self._size > MESSAGE_BYTES:
            raise ConnectionLost(f"it printed a line of more than {MESSAGE_BYTES // 2**20} MiB")
        return lines
