"""Defines `Program`: a helper program of air that runs in a sandbox's box (container). The server sends it
requests, for instance to read a file.

Code in the box can manipulate the helper program, so the server does not trust its answers: their size is
limited, and after a malformed answer the program is killed. The next request starts it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from importlib import resources
from typing import Any, Protocol

from air.errors import AirError, BoxCommandError, BoxDiedError
from air.sandbox.contract.box import Box
from air.sandbox.contract.running_command import RunningCommand
from air.sandbox.guest.frames import joined, take
from air.serve.e2b.errors import RpcError
from air.serve.e2b.programs.frames import LIMITS

_FRAMES = "air.sandbox.guest.frames"
_PACKAGE = "air.serve.e2b.programs"
_MODULES = {
    "files": ("frames", "paths", "entries", "watches", "files"),
    "ports": ("frames", "ports"),
    "kernel": ("frames", "kernel"),
}
"""Maps the name of each helper program to the modules (of `_PACKAGE`) that it consists of. Each module comes
after those that it imports. All need the module `_FRAMES`, too, which comes first."""


@cache
def script(name: str) -> str:
    """Returns the source of the helper program `name` as one Python script, so that a box can run it without
    installed files. The script defines the program's modules (see `_MODULES`) and calls the function `main`
    of the last one."""
    modules = [_FRAMES, *(f"{_PACKAGE}.{module}" for module in _MODULES[name])]
    packages = {
        ".".join(words[:n])
        for words in (m.split(".") for m in modules)
        for n in range(1, len(words))
    }
    parts = ["import sys", "p = type(sys)('air')"]
    parts += [f"sys.modules[{package!r}] = p" for package in sorted(packages)]
    for module in modules:
        package, _, file = module.rpartition(".")
        source = resources.files(package).joinpath(f"{file}.py").read_text(encoding="utf-8")
        parts += [
            f"m = sys.modules[{module!r}] = type(sys)({module!r})",
            f"exec(compile({source!r}, '{file}.py', 'exec'), m.__dict__)",
        ]
    return "\n".join([*parts, "m.main()"])


class Events(Protocol):
    """Interface of an object that receives the events of a helper program in a box. An event is a message
    that does not answer a request, such as the report of a changed file."""

    async def event(self, header: dict[str, Any]) -> None:
        """Receives one event as a JSON object. Until this method returns, no further message of the helper
        program is read; so the program pauses once the pipe is full."""

    def lost(self, error: AirError) -> None:
        """Called when the helper program has ended, so that no more events will come. `error` is the
        reason."""


class Program:
    """One helper program of air (see `air.serve.e2b.programs`) in a box. The first request starts it.
    `awake_box` is an async function that returns the box, as soon as commands can start in it. `name` is the
    program's name (`files`, `ports` or `kernel`), and `arguments` are its command-line arguments. The program
    runs as the account `user`, with `env` as additional environment variables."""

    def __init__(
        self,
        awake_box: Callable[[], Awaitable[Box]],
        name: str,
        *arguments: str,
        user: str = "root",
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._awake_box, self._name, self._arguments = awake_box, name, arguments
        self._user, self._env = user, env
        self._lock = asyncio.Lock()
        self._command: RunningCommand | None = None
        self._answers: dict[int, asyncio.Future[tuple[dict[str, Any], bytes]]] = {}
        self._reader: asyncio.Task[None] | None = None
        self._ids = itertools.count(1)
        self._sendings: set[asyncio.Task[None]] = set()
        """The asyncio tasks that write requests to the helper program."""
        self._written = 0
        """The number of the request that is being written, or was written last."""
        self.events: Events | None = None

    async def ask(self, op: str, body: bytes = b"", **fields: Any) -> tuple[dict[str, Any], bytes]:
        """Sends a request to the helper program in the box, waits for the answer, and returns the answer's
        fields and bytes. The request consists of the name of an operation (`op`), `fields` and the bytes
        `body`.

        If the caller is cancelled while the request is being written, the rest is written in the background:
        after a part of a request, the helper program would misread all further ones. A request that waits for
        its turn is dropped.

        Raises RpcError if the helper program refuses the request or ends, and BoxDiedError if the box has
        ended.
        """
        ident = next(self._ids)
        text = json.dumps({"op": op, "id": ident, **fields}).encode()
        answer = self._answers[ident] = asyncio.get_running_loop().create_future()
        sending = asyncio.create_task(self._send(ident, joined(text, body)))
        self._sendings.add(sending)
        sending.add_done_callback(self._sent)
        try:
            await asyncio.wait([sending])
            if sending.cancelled():
                raise BoxCommandError("the program was closed")
            sending.result()
            header, data = await answer
        except BoxCommandError as error:
            raise RpcError("internal", f"{self._name}: {error}") from error
        finally:
            self._answers.pop(ident, None)
            if self._written != ident:
                sending.cancel()
        if "code" in header:
            raise RpcError(str(header["code"]), str(header["message"]))
        return header, data

    async def _send(self, ident: int, request: bytes) -> None:
        """Writes a request to the helper program, which is started if necessary. Does nothing if nobody waits
        for the answer any more when the request's turn has come. `ident` is the request's number."""
        async with self._lock:
            if ident in self._answers:
                self._written = ident
                command = await self._started()
                await command.write(request)

    def _sent(self, sending: asyncio.Task[None]) -> None:
        self._sendings.discard(sending)
        if not sending.cancelled():
            sending.exception()  # marks an error as seen: perhaps nobody waits

    async def close(self) -> None:
        """Kills the helper program in the box, if it is running."""
        for sending in self._sendings:
            sending.cancel()
        if self._sendings:
            await asyncio.wait(list(self._sendings))
        command = self._command  # the end of the reader forgets it
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.wait([self._reader])
        if command is not None:
            await _kill(command)

    async def _started(self) -> RunningCommand:
        if self._command is None:
            argv = ["python3", "-I", "-c", script(self._name), *self._arguments]
            box = await self._awake_box()
            self._command = await box.start(
                argv, cwd="/", user=self._user, env=self._env, stdin=True
            )
            self._reader = asyncio.create_task(self._read(self._command))
        return self._command

    async def _read(self, command: RunningCommand) -> None:
        """Reads the helper program's output until its end. Gives each answer to the call of `ask` that waits
        for it, and each event to the object `events`."""
        buffer, errors = bytearray(), bytearray()
        error: AirError = BoxCommandError("the program ended")
        try:
            async for name, data in command.output():
                if name == "stderr":
                    errors = (errors + data)[-2000:]
                    continue
                buffer += data
                await self._take(buffer)
            error = BoxCommandError(f"the program ended: {errors.decode('utf-8', 'replace')}")
        except AirError as failure:  # of the box, or of the stream from it
            error = failure
        except Exception as broken:  # code in the box can choose what the program sends
            error = BoxCommandError(f"the program sent nonsense: {broken!r}")
            await _kill(command)
        finally:
            self._lose(error)

    async def _take(self, buffer: bytearray) -> None:
        while (frame := take(buffer, LIMITS)) is not None:
            header, body = frame
            if "id" not in header:
                if self.events is not None:
                    await self.events.event(header)
            elif (answer := self._answers.get(header["id"])) and not answer.done():
                answer.set_result((header, body))

    def _lose(self, error: AirError) -> None:
        self._command = None
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # marks the error as seen: perhaps nobody waits
        if self.events is not None:
            self.events.lost(error)


async def _kill(command: RunningCommand) -> None:
    with contextlib.suppress(BoxCommandError, BoxDiedError):  # it has ended already
        await command.signal(9)
