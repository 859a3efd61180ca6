"""The tool `code_interpreter`: runs the model's Python code, cell by cell as a notebook does, in one Python
session in the episode's box (sandbox). This module is the part in air's own process (the harness); in the box
runs `program.py`.

The code in a cell (the code of one call) may end its session, block it, or forge its responses. This affects
only what the agent itself sees. Every wait has a time limit and every line a maximum size. A session that
does not respond as expected is ended, and the next call starts a new session.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, Field, ValidationError, model_validator

from air.errors import BoxCommandError, BoxDiedError
from air.sandbox.contract.box import Box, BoxSpec
from air.sandbox.contract.running_command import RunningCommand, StreamName
from air.tools.base import Reply, Tool, ToolContext, ToolError, tool
from air.tools.load import ToolSettings

GRACE = 15.0
"""If the program that runs a cell (the code of one call) has not responded this number of seconds after the
cell's time limit, air ends the session. The program in the box needs about 3 seconds to interrupt the cell
and, if necessary, kill its process."""
STREAM_BYTES = 16_000
"""The maximum size, in bytes, of what a cell (the code of one call) writes to standard output, and also to
standard error. The middle of a longer output is left out."""
_LINE_BYTES = 16 * STREAM_BYTES + (1 << 20)
_BOOT = (
    "import builtins, sys\n"
    "names = {'__name__': '__main__', '__builtins__': dict(vars(builtins))}\n"
    "exec(compile(sys.argv[1], '<session>', 'exec'), names)"
)
_LOST = "Its variables are lost; the next call starts a new session."


class _Answer(BaseModel, strict=True):
    """A response of the program that runs the cells in the box: `stdout` and `stderr` of one cell, the value
    of its last expression (`shown`), its traceback (`error`) and exception type (`kind`), whether it was
    interrupted, how the session ended (`ended`; empty if it goes on), and the `number` of the request."""

    number: int
    stdout: str
    stderr: str
    shown: str
    error: str
    kind: str
    interrupted: bool
    ended: str


@dataclasses.dataclass
class _Running:
    command: RunningCommand
    output: AsyncIterator[tuple[StreamName, bytes]]
    received: bytes = b""


class Interpreter:
    """The Python session of one episode. The first call of `run` starts it."""

    def __init__(self, box: Box, seconds: float) -> None:
        self._box, self._seconds = box, seconds
        self._session: _Running | None = None
        self._number = 0

    async def run(self, code: str) -> Reply:
        """Runs Python code as one cell (as in a notebook). Returns a reply with the cell's output, the value
        of its last expression and, if the cell raised an exception, the traceback. Raises ToolError if the
        box cannot start another process, and BoxDiedError if the box has ended."""
        self._number += 1
        if self._session is None:
            self._session = await self._start()
        try:
            answer = await self._ask(self._session, code)
        except (
            BaseException
        ):  # cancellation too: a later answer would be taken for that to another cell
            await self._end()
            raise
        if answer is None or answer.ended:
            await self._end()
        if answer is None:
            return Reply(f"[the session did not answer] {_LOST}", "error", {"session_lost": True})
        return _reply(answer, self._seconds)

    async def close(self) -> None:
        """Ends the session and every process that its cells started."""
        await self._end()

    async def _start(self) -> _Running:
        program = files("air.tools.python_session").joinpath("program.py").read_text("utf-8")
        try:
            command = await self._box.start(["python3", "-I", "-c", _BOOT, program], stdin=True)
        except BoxCommandError as error:
            raise ToolError(f"The box has no room for a Python session: {error}") from None
        return _Running(command, command.output())

    async def _ask(self, session: _Running, code: str) -> _Answer | None:
        """Sends `code`, one cell, to the program in the box and returns its response, or None if no valid
        response comes in time."""
        fields = {"number": self._number, "code": code, "seconds": self._seconds}
        request = json.dumps(fields | {"most": STREAM_BYTES}).encode() + b"\n"
        try:
            async with asyncio.timeout(self._seconds + GRACE):
                await session.command.write(request)
                line = await _line(session)
            answer = _Answer.model_validate_json(line)
        except (TimeoutError, BoxCommandError, ValidationError):
            return None
        return answer if answer.number == self._number else None

    async def _end(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(
                BoxCommandError, BoxDiedError
            ):  # it has ended, perhaps with its box
                await session.command.signal(9)


async def _line(session: _Running) -> bytes:
    """Returns the next line of the program's standard output. If the program ends first or the line is too
    long, returns the beginning of the line that was received."""
    while b"\n" not in session.received and len(session.received) < _LINE_BYTES:
        try:
            stream, data = await anext(session.output)
        except StopAsyncIteration:
            break
        session.received += data if stream == "stdout" else b""
    line, _, session.received = session.received.partition(b"\n")
    return line


def _reply(answer: _Answer, seconds: float) -> Reply:
    parts = [answer.stdout.rstrip("\n"), answer.stderr.rstrip("\n"), answer.shown, answer.error]
    if answer.interrupted:
        parts.append(f"[the cell exceeded its time limit of {seconds:g} s]")
    if answer.ended:
        parts.append(f"[the session has ended: {answer.ended}] {_LOST}")
    failed = bool(answer.error or answer.ended or answer.interrupted)
    info: dict[str, Any] = {"exception": answer.kind} if answer.kind else {}
    info |= {"session_lost": True} if answer.ended else {}
    return Reply(
        "\n".join(filter(None, parts)) or "[no output]", "error" if failed else "success", info
    )


class CodeInterpreterSettings(ToolSettings):
    """The settings of the tool `code_interpreter`."""

    seconds: float = Field(30.0, gt=0, lt=86_400)
    """The time limit of a cell (the code of one call) in seconds. A cell that takes longer is interrupted,
    and the session's variables persist. If the cell does not stop then, the session is ended."""
    box: BoxSpec = BoxSpec()
    """The specification of the episode's box: image, limits, hosts. All tools of an episode must specify the
    same box."""
    server: str = ""
    """The URL of a server that runs code and speaks the protocol of SandboxFusion, such as `air serve
    sandbox`. It runs each call as a program of its own, without a common session. Empty: the calls run in one
    session in the episode's box (sandbox)."""
    key_variable: str = ""
    """The name of the environment variable that holds the access token of `server`. Empty: the server needs
    no token."""

    @model_validator(mode="after")
    def _box_or_server(self) -> Self:
        if self.server and self.box != BoxSpec():
            raise ValueError("`box` is for calls in a box, not for a `server`")
        if self.key_variable and not self.server:
            raise ValueError("`key_variable` is for a `server`")
        return self

    def tools(self, folder: Path) -> Sequence[Tool]:
        """Returns the tool `code_interpreter` with these settings, as a list. `folder` is not used, because
        the settings contain no paths; the base class demands it."""
        if self.server:
            from air.tools.python_session.on_server import server_tool

            return [server_tool(self.server, self.key_variable, self.seconds)]

        def session(context: ToolContext) -> Interpreter:
            assert context.box is not None
            return Interpreter(context.box, self.seconds)

        @tool(state=session, box=self.box, replays=False)
        async def code_interpreter(session: Interpreter, code: str) -> Reply:
            """Runs a cell of Python in a session of your own, as a notebook does. Variables, imports and
            files stay for later calls. The value of the last expression is shown.

            Args:
                code: the Python code
            """
            return await session.run(code)

        return [code_interpreter]

    def applied(self, tool: Tool) -> Tool:
        """Returns a copy of `tool` with the limits that are set here. The setting `seconds` limits the
        running time of the code; the program in the box, or the server, enforces it. The call as a whole gets
        a longer time limit, which matters only if they fail to do so."""
        longest = self.seconds
        if self.server:
            from air.tools.python_session.on_server import longest_call

            longest = longest_call(self.seconds)
        return dataclasses.replace(super().applied(tool), seconds=longest + 3 * GRACE)
