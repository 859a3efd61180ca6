"""The wire between a box and its guest: the bootstrap, and the host's end of the stream.

Requests are frames (`air.sandbox.guest.frames`) with an `id`; their answers carry it too. A `get` is
answered by many frames, all but the last with `more`.

`Connection` is the host's end. It belongs to one event loop. When the stream ends, or says
something that is no frame, every request, pending and later, raises `BoxDiedError` with the reason.

Both ends notice a stream that neither ends nor works, as an engine that was killed leaves it: the
host sends a beat every `BEAT_SECONDS`, which the guest answers; whoever hears nothing for about
`guest.SILENCE_SECONDS` gives up.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import itertools
import marshal
import re
import zlib
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from air.errors import BoxDiedError, BoxFileError
from air.sandbox.guest.frames import frame, take
from air.sandbox.wire.demultiplexer import STDERR, STDOUT, Demultiplexer

PATIENCE = 2
"""Seconds that a started box waits for its program: a harness that died while the engine was starting
the box may have left a stream that never ends, and nothing of it may run for 5 s."""
READ_BYTES = 1 << 18
BEAT_SECONDS, BEATS_MISSED = 15.0, 4
"""How often a guest is asked for a sign of life, and how many of them it may owe."""
GUEST = ("frames", "processes", "spawn", "files", "relay", "main")
"""The modules of the program in a box."""
GUEST_FOLDER = Path(__file__).parent.parent / "guest"
"""Where the sources of these modules are."""
_RUN_COMPILED = """
import marshal,sys,zlib
p=sys.modules['air']=sys.modules['air.sandbox']=sys.modules['air.sandbox.guest']=type(sys)('air')
for n,c in marshal.loads(zlib.decompress(s)):
 m=p.__dict__[n]=sys.modules['air.sandbox.guest.'+n]=type(sys)('air.sandbox.guest.'+n)
 exec(c,m.__dict__)
m.main()"""

Reply = tuple[dict[str, Any], bytes]


@cache
def program(modules: tuple[str, ...] = GUEST) -> bytes:
    """The guest's source as one script: its modules under their own names, then a call of `main`
    of the last one.

    Inside a box there is no `air`; an empty module stands in for the package.
    """
    parts = [
        "import sys",
        "if sys.version_info < (3, 8): sys.exit('Python %s is older than 3.8' % sys.version.split()[0])",
        "p = type(sys)('air')",
        "sys.modules['air'] = sys.modules['air.sandbox'] = sys.modules['air.sandbox.guest'] = p",
    ]
    for name, source in _sources(modules):
        parts += [
            f"m = p.{name} = sys.modules['air.sandbox.guest.{name}'] = type(sys)('{name}')",
            f"exec(compile({without_docstrings(source)!r}, 'air/{name}.py', 'exec'), m.__dict__)",
        ]
    return "\n".join([*parts, "m.main()"]).encode()


@cache
def compiled(modules: tuple[str, ...] = GUEST) -> bytes:
    """The same for an interpreter that is this very one, and calls `main` of the last of `modules`.

    It saves the compiling, and fits into a pipe before anybody reads.
    """
    codes = [
        (name, compile(source, f"air/{name}.py", "exec", optimize=2))
        for name, source in _sources(modules)
    ]
    return zlib.compress(marshal.dumps(codes))


def _sources(modules: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for name in modules:
        text = (GUEST_FOLDER / f"{name}.py").read_text(encoding="utf-8")
        yield name, re.sub(r"(?m)(^ *|  )# .*$", "", text)  # a pipe has no room for comments


def without_docstrings(source: str) -> str:
    """The same program, in which every string that is a statement is empty, and each line where it was.

    Cut out of the text: what `ast.unparse` writes, an older Python may not read.
    """
    lines = source.encode().splitlines(keepends=True)  # columns are counted in bytes
    found = [
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node.value.value, str)
    ]
    for text in sorted(found, key=lambda text: (text.lineno, text.col_offset), reverse=True):
        assert text.end_lineno is not None
        first, last = text.lineno - 1, text.end_lineno - 1
        rest = lines[last][text.end_col_offset :]
        lines[first] = lines[first][: text.col_offset] + b'""' + rest
        lines[first + 1 : last + 1] = [b"\n"] * (last - first)
    return b"".join(lines).decode()


def opening(config: Mapping[str, Any], modules: tuple[str, ...] = GUEST) -> bytes:
    """What a started box is told first: its program and its configuration."""
    return program(modules) + frame(config)


def interpreter(python: str, sent: bytes = b"", *, source: bool = False) -> list[str]:
    """The command that starts the guest: a bootstrap that reads its program from its stdin.

    It gives up after `PATIENCE` seconds of silence.

    Args:
        sent: the program; `program()` if empty.
        source: whether what is sent is a `program`; else it is `compiled`.
    """
    size = len(sent or program())
    boot = f"import os,select\ns=b''\nwhile len(s)<{size}:\n"
    boot += f" if not select.select([0],[],[],{PATIENCE})[0]: os._exit(0)\n"
    boot += f" d=os.read(0,{size}-len(s))\n"
    boot += " if not d: os._exit(0)\n s+=d\n"
    boot += _RUN_COMPILED if sent and not source else "exec(s)"
    return [python, "-I", "-S", "-E", "-X", "utf8", "-c", boot]


class FrameHandler(Protocol):
    """Takes the frames of a connection that answer no request: those of relayed ports."""

    def receive(self, header: Mapping[str, Any], body: bytes) -> None:
        """Takes one frame."""

    def lose(self, reason: str) -> None:
        """Learns that the stream is over, and why."""

    async def close(self) -> None:
        """Ends everything that it started."""


class Connection:
    """The host's end of a guest's stream.

    Args:
        reader, writer: the stream.
        stderr: the guest's standard error; None where the reader carries both, with Docker's headers.
        name: what to call the box in errors.
        beat: seconds between two beats.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        stderr: asyncio.StreamReader | None,
        name: str,
        beat: float = BEAT_SECONDS,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._errors = stderr
        self._name = name
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Queue[Reply | None]] = {}
        self._ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._demultiplexer = Demultiplexer()
        self._stderr = bytearray()
        self._unsent: list[bytes] = []
        self._reason = ""
        self._gathers = False
        self.relay: FrameHandler | None = None
        self._pump = asyncio.create_task(self._read())
        self._beat = beat
        self._unheard = 0
        self._timer = asyncio.get_running_loop().call_later(beat, self._beats)

    @property
    def reason(self) -> str:
        """Why the stream is over; empty while it is not."""
        return self._reason

    async def ready(self, *, seconds: float) -> dict[str, Any]:
        """Waits until the guest, which was sent its `opening`, is ready; returns what it says of itself.

        Raises:
            BoxDiedError: the guest ended instead.
            TimeoutError: it said nothing within `seconds`.
        """
        return await asyncio.wait_for(asyncio.shield(self._ready), seconds)

    def new_id(self) -> int:
        """A fresh request id."""
        return next(self._ids)

    def post(self, header: Mapping[str, Any], body: bytes = b"") -> None:
        """Sends a frame without waiting for an answer; harmless when the stream is over."""
        if not self._reason:
            self._write(frame(header, body))

    async def request(self, header: Mapping[str, Any], body: bytes = b"") -> Reply:
        """Sends one request and returns its one answer.

        Raises:
            BoxFileError: the guest refused.
            BoxDiedError: the stream is over.
        """
        ident = header["id"] if "id" in header else self.new_id()
        queue = self._expect(ident)
        try:
            self._write(frame({**header, "id": ident}, body))
            if body:
                await self.drain()
            return await self._answer(queue)
        finally:
            del self._waiting[ident]

    async def stream(self, header: Mapping[str, Any]) -> AsyncIterator[Reply]:
        """Sends one request and yields its answers up to the last one, which is empty."""
        ident = self.new_id()
        queue = self._expect(ident)
        try:
            self._write(frame({**header, "id": ident}))
            while True:
                reply = await self._answer(queue)
                if not reply[0].get("more"):
                    return
                yield reply
        except (asyncio.CancelledError, GeneratorExit):  # nobody takes the rest
            self.post({"op": "abort", "id": 0, "target": ident})
            raise
        finally:
            del self._waiting[ident]

    async def upload(
        self, header: Mapping[str, Any], pieces: AsyncIterable[tuple[bytes, bool]]
    ) -> None:
        """Sends a `write`, and waits for its one answer.

        Args:
            header: what every frame of it carries.
            pieces: the contents; each piece says whether it is the last one.
        """
        ident = self.new_id()
        queue = self._expect(ident)
        part = {**header, "op": "write", "id": ident}
        try:
            async for data, last in pieces:
                self._write(frame({**part, "last": last}, data))
                await self.drain()
                if not queue.empty():  # it was refused, or it was the last one
                    break
            await self._answer(queue)
        except BaseException:  # cancellation above all: half a file stays in the box else
            self.post({"op": "abort", "id": 0, "target": ident})
            raise
        finally:
            del self._waiting[ident]

    def lose(self, reason: str) -> None:
        """Gives the stream up: all who wait and all who come learn `reason`."""
        self._end(reason)

    async def close(self) -> None:
        """Closes the stream, which ends the guest. Calling it twice is harmless."""
        self._end("it is closed")
        self._pump.cancel()
        await asyncio.wait([self._pump])
        if self.relay is not None:
            await self.relay.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    def _beats(self) -> None:
        """Says that the host is there. Beats are counted, not seconds: this loop may be busy."""
        if self._unheard >= BEATS_MISSED:
            self._end(f"its guest was silent for {BEATS_MISSED * self._beat:.0f} s")
            return
        self._unheard += 1
        self.post({"op": "beat", "id": 0})
        self._timer = asyncio.get_running_loop().call_later(self._beat, self._beats)

    def _expect(self, ident: int) -> asyncio.Queue[Reply | None]:
        if self._reason:
            raise BoxDiedError(f"box {self._name}: {self._reason}")
        queue = self._waiting[ident] = asyncio.Queue()
        return queue

    def _write(self, data: bytes) -> None:
        """Sends the first frame of a turn of the event loop at once, so that the guest begins, and what
        follows in the same turn together: everything between here and the guest wakes for each write."""
        self._unsent.append(data)
        if not self._gathers:
            self._flush()
            self._gathers = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        data = b"".join(self._unsent)
        self._unsent.clear()
        self._gathers = False
        if data and not self._reason:
            self._writer.write(data)

    async def drain(self) -> None:
        """Returns when the stream takes more, or is over."""
        self._flush()
        try:
            await self._writer.drain()
        except ConnectionError as error:
            self._end(f"its stream broke: {error}")

    async def _answer(self, queue: asyncio.Queue[Reply | None]) -> Reply:
        reply = await queue.get() if not (self._reason and queue.empty()) else None
        if reply is None:
            raise BoxDiedError(f"box {self._name}: {self._reason}")
        if "error" in reply[0]:
            raise BoxFileError(str(reply[0]["error"]))
        return reply

    async def _read(self) -> None:
        buffer = bytearray()
        said, reason = "", "its stream ended"
        try:
            while data := await self._piece():
                self._unheard = 0
                buffer += data
                while reply := take(buffer):
                    said = self._route(reply) or said
        except (OSError, ValueError, RecursionError) as error:
            reason = f"its stream broke: {error}"
        if self._errors is not None and self._reader.at_eof():  # else it lives, and may be silent
            self._stderr += await self._errors.read(4096)
        if self._stderr:
            lines = self._stderr.decode("utf-8", "replace").strip().splitlines()
            reason += f" ({lines[-1]})" if lines else ""
        self._end(said or reason)

    async def _piece(self) -> bytes:
        """The next bytes of the guest's standard output; its standard error is kept for the end."""
        if self._errors is not None:
            return await self._reader.read(READ_BYTES)
        while data := await self._reader.read(READ_BYTES):
            parts = self._demultiplexer.feed(data)
            errors = b"".join(part for stream, part in parts if stream == STDERR)
            self._stderr = (self._stderr + errors)[-4096:]
            if output := b"".join(part for stream, part in parts if stream == STDOUT):
                return output
        if not self._demultiplexer.is_between_pieces:
            raise ValueError("it ended within a piece")
        return b""

    def _route(self, reply: Reply) -> str:
        """Hands an answer to whoever waits; returns the guest's reason when it says goodbye."""
        header = reply[0]
        if header.get("op") == "ready":
            if not self._ready.done():
                self._ready.set_result(header)
        elif header.get("op") == "bye":
            return str(header.get("reason"))
        elif isinstance(ident := header.get("id"), int) and ident in self._waiting:
            self._waiting[ident].put_nowait(reply)
        elif header.get("op") == "relay" and self.relay is not None:
            self.relay.receive(*reply)
        return ""

    def _end(self, reason: str) -> None:
        if self._reason:
            return
        self._reason = reason
        self._timer.cancel()
        for queue in self._waiting.values():
            queue.put_nowait(None)
        if self.relay is not None:
            self.relay.lose(reason)
        if not self._ready.done():
            self._ready.set_exception(BoxDiedError(f"box {self._name}: {reason}"))
            self._ready.exception()  # it is looked at by `ready`, if anyone still is there
        self._writer.close()
