"""The host's side of commands that `Box.start` started in a box: passes their output to their handles
(`RunningCommand` objects), and their input to the guest.

The host is the air process that started the box; the guest is air's program inside the box. For each command,
the guest sends one stream of frames (messages), and the host has any number of handles. Flow control: the
guest may send only as many bytes of output as the host has granted (its credit). The host grants more when
the reader of the slowest handle has taken output, so it never holds more than `WINDOW` bytes per command.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import weakref
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any, cast

from air.errors import AirError, BoxCommandError, BoxDiedError, BoxFileError
from air.sandbox.contract.box import ExecResult
from air.sandbox.contract.running_command import WINDOW, CommandInfo, RunningCommand, StreamName
from air.sandbox.guest.command_streams import PIECE_COST
from air.sandbox.ops.command_log import CommandLog
from air.sandbox.wire.connection import Connection, Reply

INPUT_PIECE = 1 << 16


def result_of(header: dict[str, Any], body: bytes) -> ExecResult:
    """Returns the result of a command that has ended. `header` and `body` are the last message of the guest
    about the command; `body` is its standard output, then its standard error."""
    size = header["out"]
    fields = ("code", "timed_out", "truncated", "seconds", "signal", "began")
    known = {name: header[name] for name in fields}
    return ExecResult(stdout=body[:size], stderr=body[size:], **known)


class RunningCommands:
    """The commands of one box that `Box.start` has started and that have not ended: starts them, lists them,
    and makes new handles to them, with which callers read their output and write their input."""

    def __init__(self, connection: Connection, name: str, log: CommandLog) -> None:
        self._connection, self._name, self._log = connection, name, log
        self._streams: dict[int, CommandStream] = {}

    async def start(
        self, request: dict[str, Any], info: CommandInfo, terminal: tuple[int, int] | None
    ) -> RunningCommand:
        """Starts a command, and returns a handle to it when the guest has reported the command's process id.

        `request` contains the fields of the request to the guest that `Box.exec` and `Box.start` have in
        common. `info` describes the command, still without its process id. `terminal` is the size (rows,
        columns) of the command's terminal; None means no terminal. Raises the errors of `Box.start`.
        """
        stream = CommandStream(self._connection, info, self._name)
        handle = stream.handle()
        start = {"op": "start", "id": stream.ident, "window": WINDOW, "stdin": info.stdin}
        start |= {"terminal": list(terminal) if terminal else None}
        number = self._log.run(info.command)
        stream.result.add_done_callback(lambda result: self._ended(number, stream, result))
        try:
            stream.open(start | request)
            pid = await asyncio.shield(stream.pid)
            if not stream.result.done():  # the command may have ended meanwhile
                self._streams[pid] = stream
        except BaseException as error:  # cancellation too: nobody would end the command
            stream.abandon(error)
            raise
        return handle

    def _ended(
        self, number: int, stream: CommandStream, result: asyncio.Future[ExecResult]
    ) -> None:
        if self._streams.get(stream.info.pid) is stream:
            del self._streams[stream.info.pid]
        if error := result.exception():
            self._log.failed(number, error)
        else:
            self._log.done(number, result.result())

    def infos(self) -> list[CommandInfo]:
        """Returns descriptions of the running commands, oldest first. Raises BoxDiedError if the box is
        gone."""
        self._connection.check()
        return [stream.info for stream in self._live()]

    def attach(self, pid: int) -> RunningCommand:
        """Returns a new handle to the running command with the process id `pid`. Raises BoxCommandError if
        there is no such command."""
        self._connection.check()
        for stream in self._live():
            if stream.info.pid == pid:
                return stream.handle()
        raise BoxCommandError(f"box {self._name}: no running command has the process id {pid}")

    def _live(self) -> list[CommandStream]:
        return [stream for stream in self._streams.values() if not stream.result.done()]


class CommandStream:
    """One command that was started in a box, as this process sees it. Receives the messages about the command
    from the guest, passes the output to the command's handles, and keeps its result."""

    def __init__(self, connection: Connection, info: CommandInfo, name: str) -> None:
        loop = asyncio.get_running_loop()
        self.connection, self.info = connection, info
        self.ident = connection.new_id()
        self.input = asyncio.Lock()
        """The lock of the command's standard input. Every writer holds it while it writes, so the guest
        (air's program in the box) has to hold at most one piece of input at a time."""
        self.pid: asyncio.Future[int] = loop.create_future()
        self.result: asyncio.Future[ExecResult] = loop.create_future()
        self.received = 0
        """How much credit (permission of the host to send output) the guest (air's program in the box) has
        used: the bytes of output that it has sent for this command, plus `PIECE_COST` for each piece."""
        self._granted = 0
        self._handles: weakref.WeakSet[CommandHandle] = weakref.WeakSet()
        self._name = name

    def open(self, request: dict[str, Any]) -> None:
        """Sends `request`, which starts the command. Raises BoxCommandError if the request is too large."""
        self.connection.route(self.ident, self)
        try:
            self.connection.post(request)
        except ValueError as error:
            raise BoxCommandError(f"box {self._name}: {error}") from error

    def abandon(self, error: BaseException) -> None:
        """Kills the command, unless it has ended. Called if `error` happened during the start, because then
        no caller gets a handle to the command."""
        if not self.result.done():
            self.connection.post({"op": "kill", "id": 0, "target": self.ident})
            self._fail(BoxCommandError(f"its start failed: {type(error).__name__}"))

    def put_nowait(self, reply: Reply | None) -> None:
        """Handles one message about this command from the guest. None means that the stream of messages has
        ended. `Connection` calls this method."""
        if reply is None:
            self._fail(BoxDiedError(f"box {self._name}: {self.connection.reason}"))
            return
        header, body = reply
        if "error" in header:
            self._fail(BoxCommandError(f"box {self._name}: {header['error']}"))
        elif "pid" in header:
            self.info = replace(self.info, pid=header["pid"])
            self.pid.set_result(header["pid"])
        elif "stream" in header:
            self.received += len(body) + PIECE_COST
            for handle in self._handles:
                handle.feed(header["stream"], body, self.received)
            self.grant_credit()
        elif self.pid.done():
            self.connection.unroute(self.ident)
            self.result.set_result(result_of(header, body))
            self._wake()
        else:
            self._fail(BoxCommandError(body.decode("utf-8", "replace").strip()))

    def _fail(self, error: AirError) -> None:
        self.connection.unroute(self.ident)
        for future in (self.pid, self.result):
            if not future.done():
                future.set_exception(error)
                future.exception()  # marks the error as retrieved: perhaps nobody waits
        self._wake()

    def _wake(self) -> None:
        for handle in self._handles:
            handle.news.set()

    def grant_credit(self) -> None:
        """Allows the guest to send more output of this command: as many bytes as the slowest reader has taken
        since the last permission. Sends nothing while this is less than a quarter of `WINDOW`."""
        held = [handle.taken for handle in self._handles if handle.held]
        taken = min(held, default=self.received)
        if taken - self._granted >= WINDOW // 4 and not self.result.done():
            request = {"op": "grant", "id": 0, "target": self.ident, "bytes": taken - self._granted}
            self._granted = taken
            self.connection.post(request)

    def handle(self) -> CommandHandle:
        """Returns a new handle to the command. The handle gets only the output that comes from now on."""
        handle = CommandHandle(self)
        self._handles.add(handle)
        weakref.finalize(handle, _grant_credit_later, asyncio.get_running_loop(), self)
        return handle

    async def ask(self, header: dict[str, Any], body: bytes = b"") -> None:
        """Sends a request about this command to the guest, and waits for the answer. Raises BoxCommandError
        if the guest refuses the request."""
        try:
            await self.connection.request({**header, "target": self.ident}, body)
        except BoxFileError as error:
            raise BoxCommandError(f"box {self._name}: {error}") from None


def _grant_credit_later(loop: asyncio.AbstractEventLoop, stream: CommandStream) -> None:
    """Calls `stream.grant_credit` in the event loop `loop` after a handle was deleted: the command may send
    more output, because it no longer waits for that handle's reader. Garbage collection calls this function,
    so it may run in any thread."""
    with contextlib.suppress(RuntimeError):  # the loop is closed, and so is the box
        loop.call_soon_threadsafe(stream.grant_credit)


class CommandHandle(RunningCommand):
    """One handle to a started command, through which a caller reads its output and writes its input. Keeps
    the output that the caller has not read yet."""

    def __init__(self, stream: CommandStream) -> None:
        self.held = True
        """Whether this handle keeps output for a reader. If so, the command must wait while that reader is
        slow."""
        self.taken = stream.received
        self.news = asyncio.Event()
        self._stream = stream
        self._readers = 0
        self._chunks: collections.deque[tuple[StreamName, bytes, int]] = collections.deque()

    @property
    def info(self) -> CommandInfo:
        return self._stream.info

    def feed(self, name: str, data: bytes, received: int) -> None:
        """Keeps `data`, a piece of output of the stream `name` (such as `stdout`), for this handle's reader.
        Does nothing if the handle keeps no output (see `held`).

        `received` is the value of `CommandStream.received`, which counts the command's output so far, after
        this piece. It becomes the handle's `taken` when the reader has taken the piece; then more output may
        be sent.
        """
        if self.held:
            self._chunks.append((cast(StreamName, name), data, received))
            self.news.set()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        self._readers += 1
        if not self.held:
            self.held, self.taken = True, self._stream.received
        try:
            yield
        finally:
            self._readers -= 1
            if not self._readers:
                self._discard()

    def _discard(self) -> None:
        self.held = False
        self._chunks.clear()
        self._stream.grant_credit()

    async def output(self) -> AsyncIterator[tuple[StreamName, bytes]]:
        with self._reading():
            while self._chunks or not self._stream.result.done():
                while self._chunks:
                    name, data, received = self._chunks.popleft()
                    yield name, data
                    self.taken = received
                    self._stream.grant_credit()
                self.news.clear()
                if not self._stream.result.done():
                    await self.news.wait()
            if error := self._stream.result.exception():
                raise error

    async def write(self, data: bytes) -> None:
        async with self._stream.input:
            for start in range(0, len(data), INPUT_PIECE):
                await self._input(data[start : start + INPUT_PIECE])

    async def _input(self, piece: bytes) -> None:
        ident = self._stream.connection.new_id()
        try:
            await self._stream.ask({"op": "input", "id": ident}, piece)
        except asyncio.CancelledError:
            self._stream.connection.post({"op": "abort", "id": 0, "target": ident})
            raise

    async def close_stdin(self) -> None:
        if not (self.info.stdin or self.info.terminal):
            raise BoxCommandError(f"the command {self.pid} has no standard input")
        await self._stream.ask({"op": "close"})

    async def signal(self, number: int) -> None:
        await self._stream.ask({"op": "signal", "number": int(number)})

    async def resize(self, rows: int, columns: int) -> None:
        await self._stream.ask({"op": "resize", "size": [rows, columns]})

    async def wait(self) -> ExecResult:
        if not self._readers:
            self._discard()
        return await asyncio.shield(self._stream.result)
