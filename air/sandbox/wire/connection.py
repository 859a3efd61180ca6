"""The host's connection to the guest: sends the guest's program to a new box, and exchanges frames (messages)
with it over one stream of bytes. The host is the air process that started the box; the guest is air's program
inside the box, which executes the host's requests.

Each answer has the `id` of its request. Some requests, such as `get`, have several answers; all but the last
have the field `more`. If the stream ends or carries invalid bytes, all requests raise `BoxDiedError`. A
stream can also stay open without a working guest, for example after the container engine was killed;
heartbeats (frames `beat`) detect this.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import marshal
import zlib
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping
from functools import cache
from pathlib import Path
from tokenize import COMMENT, DEDENT, ENCODING, INDENT, NEWLINE, NL, tokenize
from types import CodeType
from typing import Any, Protocol

from air.errors import BoxDiedError, BoxFileError
from air.sandbox.guest.frames import frame, take
from air.sandbox.wire.demultiplexer import STDERR, STDOUT, Demultiplexer

PATIENCE = 2
"""The number of seconds for which a started container waits for more bytes of the guest's program, before it
ends. Needed because its stream might never close if the air process dies while the container engine starts
the container; it must nevertheless be gone within 5 s. A process box (a box without a container) waits
longer, because its stream is a pipe, which closes."""
READ_BYTES = 1 << 18
BEAT_SECONDS, BEATS_MISSED = 15.0, 4
"""The number of seconds between two heartbeats (requests that only test whether the guest still answers), and
the number of consecutive heartbeats without an answer after which it counts as dead."""
CLOSED = "it is closed"
"""The text of `Connection.reason` (why the stream to the guest has ended) if this process itself closed the
stream."""
GUEST = (
    *("frames", "running_commands", "users", "spawn", "files", "accounts", "entries", "outbox"),
    *("relay", "command_streams", "main"),
)
"""The names of the modules that form the guest, the program that air runs inside a box. Each module imports
only modules that come before it in this tuple."""
GUEST_FOLDER = Path(__file__).parent.parent / "guest"
_RUN_COMPILED = """
import marshal,sys,zlib
p=sys.modules['air']=sys.modules['air.sandbox']=sys.modules['air.sandbox.guest']=type(sys)('air')
for n,c in marshal.loads(zlib.decompress(s)):
 m=p.__dict__[n]=sys.modules['air.sandbox.guest.'+n]=type(sys)('air.sandbox.guest.'+n)
 exec(c,m.__dict__)
m.main()"""
_RUN_SOURCE = "import zlib\nexec(zlib.decompress(s))"

_BEGIN = {ENCODING, NEWLINE, NL, INDENT, DEDENT}
"""The kinds of Python tokens after which a statement can begin. `stripped` uses them to find docstrings,
which are strings that are a whole statement. Such a token may also come before a line within brackets, where
no statement begins; `stripped` therefore also tests the token after the string."""

Reply = tuple[dict[str, Any], bytes]


@cache
def program(modules: tuple[str, ...] = GUEST, arguments: str = "") -> bytes:
    """Returns the guest as one compressed Python script, which a started box executes. The result fits into a
    pipe's buffer (64 KiB), so it can be sent at once.

    The script defines the `modules`, which are files in the folder `guest`, and calls the function `main` of
    the last one. `arguments` is the text of the call's arguments in Python.
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
            f"exec(compile({stripped(source)!r}, 'air/{name}.py', 'exec'), m.__dict__)",
        ]
    return zlib.compress("\n".join([*parts, f"m.main({arguments})"]).encode())


@cache
def compiled(modules: tuple[str, ...] = GUEST) -> bytes:
    """Returns the guest, which consists of `modules`, as compressed bytecode of this process's Python
    version. The result fits into a pipe's buffer (64 KiB)."""
    sources = _sources(modules)
    codes = [(name, compile(text, name, "exec", optimize=2)) for name, text in sources]
    return zlib.compress(marshal.dumps([(name, without_lines(code)) for name, code in codes]), 9)


def without_lines(code: CodeType) -> CodeType:
    """Returns the bytecode `code`, and all code in it, without line numbers, which would be a third of the
    bytes to send."""
    inner = (without_lines(each) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.replace(co_linetable=b"", co_consts=tuple(inner))


def _sources(modules: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for name in modules:
        yield name, (GUEST_FOLDER / f"{name}.py").read_text(encoding="utf-8")


def stripped(source: str) -> str:
    """Returns the Python source text `source` without comments and docstrings. So air's program for a box,
    which is sent to the box, fits into a pipe's buffer.

    Line numbers and code do not change. `ast.unparse` is not used because an older Python might be unable to
    read its output.
    """
    # `splitlines` would also split at U+2028 and form feeds, even in strings.
    lines = list(io.StringIO(source))
    tokens = list(tokenize(io.BytesIO(source.encode()).readline))
    for before, token, after in zip(tokens[-3::-1], tokens[-2::-1], tokens[:0:-1], strict=False):
        (row, start), (last, end) = token.start, token.end
        if token.type == COMMENT:
            lines[row - 1] = lines[row - 1][:start].rstrip() + lines[row - 1][end:]
        elif before.type in _BEGIN and after.type == NEWLINE and token.string[0] in "'\"":
            text = lines[row - 1][:start] + '""' + lines[last - 1][end:]
            lines[row - 1 : last] = [text, *["\n"] * (last - row)]
    return "".join(lines)


def opening(config: Mapping[str, Any], modules: tuple[str, ...] = GUEST) -> bytes:
    """Returns the first bytes to send to a started box: the guest, which consists of `modules`, and then the
    guest's configuration `config` as a frame."""
    return program(modules) + frame(config)


def interpreter(
    python: str, sent: bytes = b"", *, source: bool = False, patience: float = PATIENCE
) -> list[str]:
    """Returns the command that starts the interpreter `python` (a path or a name in the box's PATH) with a
    small script. This script reads the guest from standard input and executes it.

    `sent` is the program that the caller will send: bytecode from `compiled` or, if `source` is true, source
    from `program`. Empty means `program()`. The script ends if no bytes come for `patience` seconds.
    """
    size = len(sent or program())
    boot = f"import os,select\ns=b''\nwhile len(s)<{size}:\n"
    boot += f" if not select.select([0],[],[],{patience})[0]: os._exit(0)\n"
    boot += f" d=os.read(0,{size}-len(s))\n"
    boot += " if not d: os._exit(0)\n s+=d\n"
    boot += _RUN_COMPILED if sent and not source else _RUN_SOURCE
    return [python, "-I", "-S", "-E", "-X", "utf8", "-c", boot]


class FrameHandler(Protocol):
    """The interface of the port relay's host side, to which a `Connection` passes all frames of the port
    relay. The relay connects programs in a box to functions or servers outside (`Box.forward`)."""

    def receive(self, header: Mapping[str, Any], body: bytes) -> None:
        """Handles one frame from the guest about a network connection to a forwarded port."""

    def lose(self, reason: str) -> None:
        """Reacts to the end of the stream to the guest: no relayed network connection can continue.
        `Connection` calls this method once; `reason` says why the stream ended."""

    async def close(self) -> None:
        """Ends all network connections that programs in the box have opened to forwarded ports."""


class AnswerReceiver(Protocol):
    """The interface of an object that receives the answers of the guest to one request: an `asyncio.Queue`,
    or a `CommandStream`."""

    def put_nowait(self, reply: Reply | None, /) -> None:
        """Receives one answer, or None if the stream to the guest has ended."""


class Connection:
    """The host's end of the stream to a guest. Sends requests to the guest, and waits for the answers.

    `reader` and `writer` are the stream. `stderr` is the guest's standard error; if it is None, `reader`
    carries standard output and standard error in pieces with Docker's headers. `name` is the box's name for
    error messages. `beat` is the number of seconds between two heartbeats.
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
        self._waiting: dict[int, AnswerReceiver] = {}
        self._ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._demultiplexer = Demultiplexer()
        self._stderr = bytearray()
        self._unsent: list[bytes] = []
        self.reason = ""
        """The reason why the stream to the guest (air's program in the box) has ended; an empty string while
        the stream is open."""
        self.lost = asyncio.Event()
        """Set when the stream to the guest (air's program in the box) has ended."""
        self._gathers = False
        self.relay: FrameHandler | None = None
        self._pump = asyncio.create_task(self._read())
        self._beat = beat
        self._unheard = 0
        self._timer = asyncio.get_running_loop().call_later(beat, self._beats)

    async def ready(self, *, seconds: float) -> dict[str, Any]:
        """Waits until the guest is ready, and returns the header (the fields) of its first message, the frame
        `ready`.

        Raises BoxDiedError if the stream ends first, and TimeoutError after `seconds`.
        """
        return await asyncio.wait_for(asyncio.shield(self._ready), seconds)

    def new_id(self) -> int:
        """Returns an unused id for a request."""
        return next(self._ids)

    def post(self, header: Mapping[str, Any], body: bytes = b"") -> None:
        """Sends a frame (a message of `header` and `body`) to the guest, and does not wait for an answer.
        Does nothing if the stream to the guest has ended."""
        if not self.reason:
            self._write(frame(header, body))

    def post_with_next(self, header: Mapping[str, Any]) -> None:
        """Sends a frame at the next iteration of the event loop. If another frame is sent before that, both
        are sent in one write, which is faster."""
        if not self.reason:
            self._unsent.append(frame(header))
            asyncio.get_running_loop().call_soon(self._flush)

    async def request(self, header: Mapping[str, Any], body: bytes = b"") -> Reply:
        """Sends the guest a request that has one answer, and returns the answer's header and body.

        Raises BoxFileError if the answer is an error, BoxDiedError if the stream has ended, and ValueError if
        the request is too large for one frame.
        """
        ident = header["id"] if "id" in header else self.new_id()
        with self._answers(ident) as queue:
            self._write(frame({**header, "id": ident}, body))
            if body:
                await self.drain()
            return await self.answer(queue)

    async def stream(self, header: Mapping[str, Any]) -> AsyncIterator[Reply]:
        """Sends the guest a request that has several answers, and yields the header and body of each answer.
        If the caller stops early, the request is cancelled."""
        ident = self.new_id()
        with self._answers(ident) as queue:
            self._write(frame({**header, "id": ident}))
            try:
                while (reply := await self.answer(queue))[0].get("more"):
                    yield reply
            except (asyncio.CancelledError, GeneratorExit):  # nobody reads the other answers
                self.post({"op": "abort", "id": 0, "target": ident})
                raise

    async def upload(
        self, header: Mapping[str, Any], pieces: AsyncIterable[tuple[bytes, bool]]
    ) -> None:
        """Writes a file in the box. `header` has the fields of the request, such as the file's path and mode.
        `pieces` yields the content as pairs: some bytes, and whether they are the last.

        Raises BoxFileError if the box refuses the file, and BoxDiedError if the box has ended. After any
        error no incomplete file stays in the box.
        """
        ident = self.new_id()
        part = {**header, "op": "write", "id": ident}
        with self._answers(ident) as queue:
            try:
                async for data, last in pieces:
                    self._write(frame({**part, "last": last}, data))
                    await self.drain()
                    if (
                        not queue.empty()
                    ):  # the guest refused the file, or already has the whole file
                        break
                await self.answer(queue)
            except BaseException:  # cancellation too: no partial file stays in the box
                self.post({"op": "abort", "id": 0, "target": ident})
                raise

    async def close(self) -> None:
        """Closes the stream, so that the guest ends. A second call does nothing."""
        self.lose(CLOSED)
        self._pump.cancel()
        await asyncio.wait([self._pump])
        if self.relay is not None:
            await self.relay.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    def _beats(self) -> None:
        """Sends a heartbeat and schedules the next. If the last `BEATS_MISSED` heartbeats had no answer,
        closes the stream instead.

        The method counts heartbeats, not seconds, because this process may itself be too busy to read answers
        for a while.
        """
        if self._unheard >= BEATS_MISSED:
            self.lose(f"its guest was silent for {BEATS_MISSED * self._beat:.0f} s")
            return
        self._unheard += 1
        self.post({"op": "beat", "id": 0})
        self._timer = asyncio.get_running_loop().call_later(self._beat, self._beats)

    @contextlib.contextmanager
    def _answers(self, ident: int) -> Iterator[asyncio.Queue[Reply | None]]:
        """Context manager: yields a queue that receives the answers to the request with the id `ident`."""
        queue: asyncio.Queue[Reply | None] = asyncio.Queue()
        self.route(ident, queue)
        try:
            yield queue
        finally:
            self.unroute(ident)

    def route(self, ident: int, sink: AnswerReceiver) -> None:
        """Makes `sink` receive the answers of the guest to the request with the id `ident`, until `unroute`
        is called. Raises BoxDiedError if the stream to the guest has ended."""
        self.check()
        self._waiting[ident] = sink

    def check(self) -> None:
        """Raises BoxDiedError if the stream to the guest has ended."""
        if self.reason:
            raise BoxDiedError(f"box {self._name}: {self.reason}")

    def unroute(self, ident: int) -> None:
        """Ignores all further answers to the request with the id `ident`."""
        self._waiting.pop(ident, None)

    def _write(self, data: bytes) -> None:
        """Sends a frame: at once if it is the first in this iteration of the event loop, otherwise at the
        iteration's end, in one write with the others.

        Fewer writes are better because each write wakes all processes between this process and the guest.
        """
        self._unsent.append(data)
        if not self._gathers:
            self._flush()
            self._gathers = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        data = b"".join(self._unsent)
        self._unsent.clear()
        self._gathers = False
        if data and not self.reason:
            self._writer.write(data)

    async def drain(self) -> None:
        """Sends all queued frames, and waits until the stream can take more bytes or has ended."""
        self._flush()
        try:
            await self._writer.drain()
        except ConnectionError as error:
            self.lose(f"its stream broke: {error}")

    async def answer(self, queue: asyncio.Queue[Reply | None]) -> Reply:
        """Waits for the next answer in `queue`, which receives the answers to one request (see `route`), and
        returns its header and body. Raises BoxFileError if the answer is an error, and BoxDiedError if the
        stream to the guest has ended."""
        reply = await queue.get() if not (self.reason and queue.empty()) else None
        if reply is None:
            raise BoxDiedError(f"box {self._name}: {self.reason}")
        if "error" in reply[0]:
            raise BoxFileError(str(reply[0]["error"]))
        return reply

    async def _read(self) -> None:
        buffer = bytearray()
        goodbye, reason = "", "its stream ended"
        try:
            while data := await self._piece():
                self._unheard = 0
                buffer += data
                while reply := take(buffer):
                    goodbye = self._route(reply) or goodbye
        except (OSError, ValueError, RecursionError) as error:
            reason = f"its stream broke: {error}"
        # Unless standard output is `at_eof`, the guest lives, and this read could wait for ever.
        if self._errors is not None and self._reader.at_eof():
            self._stderr += await self._errors.read(4096)
        if self._stderr:
            lines = self._stderr.decode("utf-8", "replace").strip().splitlines()
            reason += f" ({lines[-1]})" if lines else ""
        self.lose(goodbye or reason)

    async def _piece(self) -> bytes:
        """Returns the next bytes of the standard output of the guest, air's program in the box (`b""` at the
        end of the stream). Also stores the last part of the guest's standard error, for error messages."""
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
        """Passes one frame of the guest to its receiver. If it is the frame `bye`, with which the guest ends,
        returns the reason that the frame gives; otherwise an empty string."""
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

    def lose(self, reason: str) -> None:
        """Closes the stream to the guest for the given `reason`. All unanswered and later requests raise
        `BoxDiedError` with this reason."""
        if self.reason:
            return
        self.reason = reason
        self.lost.set()
        self._timer.cancel()
        for sink in list(self._waiting.values()):
            sink.put_nowait(None)
        if self.relay is not None:
            self.relay.lose(reason)
        if not self._ready.done():
            self._ready.set_exception(BoxDiedError(f"box {self._name}: {reason}"))
            self._ready.exception()  # marks the error as retrieved: perhaps nobody calls `ready`
        self._writer.close()
