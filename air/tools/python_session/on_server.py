"""The tool `code_interpreter` if a server runs the code. The server speaks the protocol of SandboxFusion (a
service that runs programs), as `air serve sandbox` does. Each call runs a program of its own, so variables do
not stay for later calls.

A program that fails or exceeds its time limit is the model's mistake, and the model sees what happened. If
the server itself fails, air runs a harmless program, and then the agent's program again. If only the agent's
program fails again, it counts as the cause, and the model sees an error. If the harmless program fails too,
InfrastructureError is raised, and the episode is left out of training.
"""

from __future__ import annotations

import os

from air.errors import ConfigError, InfrastructureError, UsageError
from air.sandbox.remote.sandbox_fusion import (
    CodeServer,
    ProgramResult,
    TooLargeError,
    base_url,
    longest_run,
)
from air.tools.base import Reply, Tool, ToolContext, ToolError, tool

COMPILE_SECONDS = 10.0
"""The time limit of the compiler, in seconds. Python needs none, but servers expect a limit."""
HARMLESS = "print(1)"
ANSWER_BYTES = 64 << 20
"""The maximum size of a server's answer, in bytes. This limits the memory that a program's output takes."""


class ServerPrograms:
    """Runs the Python programs of one episode on the server at `url`, which runs code for its clients, each
    program for at most `seconds` seconds. `token` is the server's access token; empty if it needs none."""

    def __init__(self, url: str, token: str, seconds: float) -> None:
        self._server = CodeServer(url, token=token, most_bytes=ANSWER_BYTES)
        self._seconds = seconds

    async def run(self, code: str) -> Reply:
        """Runs a Python program, and returns a reply with its output and exit status. Raises ToolError if the
        program or its output is too large, or if the program makes the server fail. Raises
        InfrastructureError if the server fails otherwise."""
        try:
            result = await self._run(code)
        except TooLargeError:
            raise ToolError("The program or its output is too large.") from None
        except UsageError as error:  # a wrong token, for example: the agent did not cause it
            raise InfrastructureError(str(error)) from error
        parts = [result.stdout.rstrip("\n"), result.stderr.rstrip("\n")]
        if result.timed_out:
            parts.append(f"[the program exceeded its time limit of {self._seconds:g} s]")
        elif result.code:
            parts.append(f"[exit {result.code}]")
        text = "\n".join(filter(None, parts)) or "[no output]"
        return Reply(text, "success" if result.succeeded else "error", {"code": result.code})

    async def _run(self, code: str) -> ProgramResult:
        try:
            return await self._once(code)
        except InfrastructureError:
            await self._once(HARMLESS)
        try:
            return await self._once(code)
        except InfrastructureError as error:
            raise ToolError("The server cannot run this program.") from error

    async def _once(self, code: str) -> ProgramResult:
        return await self._server.run(
            code, compile_seconds=COMPILE_SECONDS, run_seconds=self._seconds
        )

    async def close(self) -> None:
        """Closes the connections to the server."""
        await self._server.close()


def longest_call(seconds: float) -> float:
    """Returns the longest time, in seconds, that a call of the tool can take. `seconds` is the time limit of
    one program. A call runs up to three programs: if the server fails at the first, a harmless one and the
    first one again."""
    return 3 * longest_run(COMPILE_SECONDS + seconds)


def server_tool(url: str, key_variable: str, seconds: float) -> Tool:
    """Returns the tool `code_interpreter` for the server at `url`. The environment variable `key_variable`
    holds the server's access token; empty: the server needs none. `seconds` is the time limit of a program.
    Raises ConfigError if `url` is not the URL of a server, or the variable is not set."""
    address = base_url(url)
    token = os.environ.get(key_variable, "") if key_variable else ""
    if key_variable and not token:
        message = f"the environment variable {key_variable} is not set"
        raise ConfigError(message, where="tool 'code_interpreter'", remedy="set it to the token")

    async def programs(context: ToolContext) -> ServerPrograms:
        return ServerPrograms(address, token, seconds)

    @tool(state=programs, replays=False)
    async def code_interpreter(programs: ServerPrograms, code: str) -> Reply:
        """Runs a Python program and shows what it prints. Each call runs a new program: variables, imports
        and files do not stay for later calls.

        Args:
            code: the Python program
        """
        return await programs.run(code)

    return code_interpreter
