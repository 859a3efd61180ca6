"""One program in a container, run by the engine's exec, as `shell.WRAPPER` runs it.

Its output is read from the engine's stream while it runs, and it is over when the wrapper says so on
both of its streams: a child in the background that holds them open holds nothing up. The marks are a
secret of this one program; a command that prints them cheats only about its own end.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import struct
import time
from collections.abc import Iterable, Mapping, Sequence

from docker.errors import APIError

from air.errors import BoxDiedError
from air.sandbox.docker import box as docker
from air.sandbox.docker import container_stream, posix_shell
from air.sandbox.docker import engine as daemon
from air.sandbox.guest.processes import Output

_MARK_BYTES, _LONGEST = 12, 4
OUT, ERR = 1, 2


def refused(error: BaseException) -> str | None:
    """Why a container that is alive could start no further process; None for any other error."""
    text = str(error.explanation) if isinstance(error, APIError) else ""
    return text if "oci runtime" in text.lower() else None


class Marked:
    """One output stream of a program: what lies between the marks, bounded."""

    def __init__(self, mark: bytes, cap: int) -> None:
        self.output = Output(cap)
        self.began = False
        self.status: int | None = None
        """The program's end as this stream tells it."""
        self._mark, self._held = mark, b""

    def add(self, data: bytes) -> None:
        """Takes what the engine sent; what comes after the end is thrown away."""
        if self.status is not None:
            return
        self._held += data
        while (at := self._held.find(self._mark)) >= 0:
            self._give(at)
            size = len(self._mark)
            word, found, rest = self._held[size:].partition(b";")
            if not found and len(word) < _LONGEST:
                return  # the rest of the mark is to come
            if found and word == b"+":
                self.began, self._held = True, rest
            elif found and word.isdigit() and len(word) < _LONGEST:
                self.status, self._held = int(word), b""
                return
            else:
                self._give(size)
        self._give(max(0, len(self._held) - len(self._mark) + 1))

    def close(self) -> None:
        """Takes what was held back, at the end of the stream."""
        self._give(len(self._held))

    def _give(self, size: int) -> None:
        self.output.add(self._held[:size])
        self._held = self._held[size:]


class Stream:
    """The engine's stream of one exec: two outputs taken apart, and standard input."""

    def __init__(
        self, ident: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.exec = ident
        """The engine's id of the exec."""
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(
        cls, container: str, argv: Sequence[str], *, user: str, env: Mapping[str, str], stdin: bool
    ) -> Stream:
        """Starts `argv` in a container; it runs on where the caller is cancelled.

        Raises:
            DockerException, RequestException, OSError: the engine refused, or failed.
        """

        started: list[tuple[str, socket.socket]] = []

        def launch() -> None:
            engine = daemon.client()
            options = {"stdin": stdin, "user": user, "environment": dict(env)}
            ident = str(engine.exec_create(container, list(argv), **options)["Id"])
            started.append((ident, container_stream.taken(engine.exec_start(ident, socket=True))))

        try:
            await daemon.in_thread(launch)
            ident, sock = started[0]
            reader, writer = await asyncio.open_connection(sock=sock, limit=docker.MIB)
        except asyncio.CancelledError:
            for _, sock in started:
                sock.close()
            raise
        return cls(ident, reader, writer)

    async def piece(self) -> tuple[int, bytes]:
        """The next bytes, and the output they belong to; no bytes at the end."""
        try:
            kind, size = struct.unpack(">BxxxI", await self._reader.readexactly(8))
            return kind, await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, OSError):
            return 0, b""

    async def write(self, data: bytes) -> None:
        """Writes to standard input; raises OSError where nobody reads it any more."""
        self._writer.write(data)
        await self._writer.drain()

    def end(self) -> None:
        """Closes standard input."""
        if self._writer.can_write_eof():
            self._writer.write_eof()

    async def close(self) -> None:
        """Lets go of the stream, and of what was not sent. The program is not ended by this."""
        self._writer.transport.abort()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


class Program:
    """A program that runs in a container."""

    def __init__(self, stdout: Marked, stderr: Marked) -> None:
        self.stdout, self.stderr = stdout, stderr
        self.over = asyncio.Event()
        """Set when it has ended, or its stream has."""
        self.begun = asyncio.Event()
        """Set when the program itself begins, or never will."""
        self.refusal = ""
        """What the engine said instead of starting it."""
        self._since = self._until = 0.0
        self.stream: Stream | None = None
        """The engine's stream; None where it refused."""
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def start(
        cls,
        container: str,
        argv: Sequence[str],
        *,
        folder: str,
        user: str,
        env: Mapping[str, str],
        stdin: Iterable[bytes],
        max_bytes: tuple[int, int],
    ) -> Program:
        """Starts `argv` in `folder`; `stdin` is written to it piece by piece. `max_bytes` are the
        caps of standard output and error.

        Raises:
            BoxDiedError: the container is gone, or its engine failed.
        """
        token = secrets.token_hex(_MARK_BYTES)
        mark = token.encode()
        program = cls(Marked(mark, max_bytes[0]), Marked(mark, max_bytes[1]))
        pieces = iter(stdin)
        first = next(pieces, None)
        fed = "" if first is None else "fed"
        wrapped = ["sh", "-c", posix_shell.WRAPPER, "air", token, folder, fed, *argv]
        try:
            program.stream = await Stream.open(
                container, wrapped, user=user, env=env, stdin=first is not None
            )
        except daemon.FOREIGN as error:
            if (why := refused(error)) is None:
                raise BoxDiedError(f"it takes no command: {error}") from error
            program.refusal = why
            program.begun.set()
            program.over.set()
            return program
        program._tasks.append(asyncio.create_task(program._read(program.stream)))
        if first is not None:
            feeding = program._feed(program.stream, first, pieces)
            program._tasks.append(asyncio.create_task(feeding))
        return program

    @property
    def status(self) -> int | None:
        """Its exit status, once it has ended in the way that programs do."""
        return self.stderr.status if self.stdout.status is not None else None

    @property
    def seconds(self) -> float:
        """How long it ran, or has run."""
        if not self._since:
            return 0.0
        return (self._until or time.monotonic()) - self._since

    async def _read(self, stream: Stream) -> None:
        while self.status is None:
            kind, data = await stream.piece()
            if not data:
                break
            side = self.stderr if kind == ERR else self.stdout
            side.add(data)
            if self.stderr.began and not self._since:
                self._since = time.monotonic()
                self.begun.set()
        for side in (self.stdout, self.stderr):
            side.close()
        if not self._since:
            said = self.stdout.output.bytes() + self.stderr.output.bytes()
            self.refusal = said.decode("utf-8", "replace").strip()
        self._until = time.monotonic()
        self.begun.set()
        self.over.set()

    async def _feed(self, stream: Stream, first: bytes, rest: Iterable[bytes]) -> None:
        with contextlib.suppress(OSError):  # it does not read, or has ended
            await stream.write(first)
            for piece in rest:
                await stream.write(piece)
            stream.end()

    async def close(self) -> None:
        """Lets go of its streams; it is not ended by this. Calling it twice is harmless."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self.stream is not None:
            await self.stream.close()
