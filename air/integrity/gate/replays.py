"""Replays recorded trajectories of agents in a box (container).

Commands run one after another by `Shell`, as the agent's own commands do: each in a new shell, with the
folder and the exported variables of the command before. Keystrokes are typed into one login shell in a
terminal. In a trajectory with both, the two know nothing of each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from air.errors import BoxCommandError
from air.sandbox.contract.box import Box
from air.sandbox.contract.running_command import RunningCommand
from air.sandbox.contract.shell import Shell
from air.trajectories.atif.reading import Input, Recording

COMMAND_SECONDS = 120.0
"""The time limit of one command of a trajectory, in seconds."""
EXTRA_SECONDS = 5.0
"""The seconds for which a replay waits for the prompt after a typed line, in addition to the seconds for
which the agent waited."""
PROMPT_SECONDS = 60.0
"""The time limit for the first prompt of a terminal's shell and, after the last input, for its last one, in
seconds."""
TIME_LIMIT = "the time limit"
"""The text that every message about a time limit contains. Such a message depends on the machine's load."""
_SILENCE = 0.3
"""The seconds without output after which a prompt counts as the last one, and not as that between two lines
of one input."""
_KEPT = 10_000
"""The number of bytes of a terminal's last output in which a replay looks for the prompt."""
_OUTPUT_BYTES = 1000
"""The number of bytes of a command's output that are kept, for error messages."""
_LONGEST_LINE = 4094
"""The number of bytes that a terminal keeps of a line, unless the program edits the line itself, as bash
does."""
MARK = b"\x1b]0;air-prompt\x07"
"""The text that the shell writes at each prompt. Terminals do not show it."""
_BASH_SETTINGS = (
    """ unset PROMPT_COMMAND; PS1='$ ' PROMPT_COMMAND='printf "\\033]0;air-prompt\\007"'\n"""
)
"""The first line that is typed into bash. bash then writes `MARK` once at each prompt, whatever the start-up
files of the image have set. The line itself does not contain the mark."""
_SH_SETTINGS = """ PS1="$(printf '\\033]0;air-prompt\\007')$ "\n"""
"""The first line that is typed into another shell, to the same effect."""


async def replay(
    box: Box,
    recording: Recording,
    seconds: float,
    command_seconds: float = COMMAND_SECONDS,
    end_seconds: float = PROMPT_SECONDS,
) -> str:
    """Runs the inputs of a recording in `box`, in their order. Takes at most `seconds` seconds after the
    start of the shell, and `command_seconds` for each command; then it waits until what was typed has ended,
    at most for `end_seconds`. The terminal's shell stays alive afterwards, as that of a real agent does.

    Returns a message if not all inputs were run, or something did not end in time; otherwise an empty string.
    Raises BoxCommandError if no shell starts, whatever the inputs are, and BoxDiedError if the box is gone.
    """
    typed = [each.text for each in recording.inputs if each.typed]
    if len(typed) < len(recording.inputs):
        await _check_that_a_shell_starts(box)
    async with contextlib.AsyncExitStack() as stack:
        terminal = await stack.enter_async_context(_terminal(box)) if typed else None
        play = _Replay(box, terminal, seconds, command_seconds)
        problem = await play.run(recording.inputs)
        if terminal and not problem and not await terminal.ends(end_seconds):
            limit = f"{TIME_LIMIT} of {end_seconds:g} seconds"
            problem = f"what was typed last had not ended within {limit}"
    problems = [problem]
    if play.stopped:
        limit = f"{TIME_LIMIT} of {command_seconds:g} seconds"
        problems.append(f"commands that reached {limit}: {play.stopped}")
    lines = [line for text in typed for line in text.split("\n")]
    if box.shell != "bash" and any(len(line.encode()) > _LONGEST_LINE for line in lines):
        problems.append(
            f"lines of more than {_LONGEST_LINE} bytes were cut, because the box has no bash"
        )
    return "; ".join(filter(None, problems))


async def _check_that_a_shell_starts(box: Box) -> None:
    """Raises BoxCommandError if the box does not start a shell for a command."""
    result = await Shell(box).exec("true", timeout=PROMPT_SECONDS, max_bytes=_OUTPUT_BYTES)
    if not result.began:
        raise BoxCommandError(f"the shell did not start: {result.text}")


class _Replay:
    """Runs the inputs of a recording in a box, and keeps to the time limits."""

    def __init__(
        self, box: Box, terminal: _Terminal | None, seconds: float, command_seconds: float
    ) -> None:
        self._shell, self._terminal = Shell(box), terminal
        self._deadline = time.monotonic() + seconds
        self._command_seconds = command_seconds
        self.stopped = 0
        """The number of commands that reached their own time limit."""

    async def run(self, inputs: tuple[Input, ...]) -> str:
        """Runs the inputs in their order; returns a message if not all of them were run."""
        for number, each in enumerate(inputs, 1):
            place = f"input {number} of {len(inputs)}"
            if each.typed and self._terminal and self._terminal.ended:
                return f"the shell ended before {place}"
            try:
                await self._run(each)
            except TimeoutError:
                return f"{TIME_LIMIT} was reached in {place}"
            except BoxCommandError as error:
                return f"{place} could not be run: {error}"
        return ""

    async def _run(self, each: Input) -> None:
        """Runs one input. Raises TimeoutError if that reaches the time limit of the replay."""
        remaining = self._deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        if each.typed:
            assert self._terminal is not None
            # A program that reads nothing would block the terminal for ever.
            await asyncio.wait_for(self._terminal.type(each), remaining)
            return
        result = await self._shell.exec(
            each.text, timeout=min(remaining, self._command_seconds), max_bytes=_OUTPUT_BYTES
        )
        if not result.began:
            raise BoxCommandError(f"the shell did not start: {result.text}")
        if result.timed_out:
            if remaining <= self._command_seconds:
                raise TimeoutError
            self.stopped += 1


class _Terminal:
    """A shell in a terminal in a box."""

    def __init__(self, shell: RunningCommand) -> None:
        self._shell = shell
        self._tail = b""
        """The last output since the last input that ended a line."""
        self._changed = time.monotonic()
        self.reader = asyncio.create_task(self._read())
        """The task that reads the shell's output. It ends with the shell, and raises BoxDiedError if the box
        is gone."""

    @property
    def ended(self) -> bool:
        """Whether the shell has ended."""
        return self.reader.done()

    async def begin(self, settings: str) -> None:
        """Types the line `settings`, and waits for the first prompt. Raises BoxCommandError if there is
        none."""
        try:
            await self._shell.write(settings.encode())
        except BoxCommandError as error:
            raise BoxCommandError(f"the shell ended at its start: {error}") from error
        if not await self.ready(PROMPT_SECONDS):
            raise BoxCommandError(
                "the shell ended at its start"
                if self.ended
                else f"the shell showed no prompt within {PROMPT_SECONDS:g} seconds"
            )

    async def type(self, each: Input) -> None:
        """Types an input. If it ends a line, waits for the prompt; otherwise, for as long as the agent
        waited."""
        ends_line = "\n" in each.text or "\r" in each.text
        if ends_line:
            self._tail = b""
        await self._shell.write(each.text.encode())
        if ends_line:
            await self.ready(each.seconds + EXTRA_SECONDS)
        else:
            await asyncio.wait({self.reader}, timeout=each.seconds)

    async def ends(self, seconds: float) -> bool:
        """Waits until the shell waits for a command or has ended, at most `seconds` seconds; returns whether
        it does."""
        return await self.ready(seconds) or self.ended

    async def _read(self) -> None:
        async for _, data in self._shell.output():
            self._tail = (self._tail + data)[-_KEPT:]
            self._changed = time.monotonic()

    async def ready(self, seconds: float) -> bool:
        """Waits until the shell waits for a command, at most `seconds` seconds; returns whether it does."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.ended:
            _, mark, after = self._tail.rpartition(MARK)
            # A line end after the prompt: the shell already runs a command that was typed ahead.
            silent = time.monotonic() - self._changed >= _SILENCE
            if mark and silent and b"\n" not in after:
                return True
            await asyncio.sleep(0.05)
        return False


@contextlib.asynccontextmanager
async def _terminal(box: Box) -> AsyncIterator[_Terminal]:
    """Context manager: starts a shell in a terminal in `box`. At the end, the shell stays alive. Raises
    BoxCommandError if the shell does not start, and BoxDiedError if the box is gone."""
    bash = box.shell == "bash"
    argv = ["bash", "--login"] if bash else [box.shell or "sh", "-i"]
    terminal = _Terminal(await box.start(argv, env={"TERM": "xterm"}, terminal=(40, 160)))
    try:
        await terminal.begin(_BASH_SETTINGS if bash else _SH_SETTINGS)
        yield terminal
        if terminal.ended:
            await terminal.reader  # raises BoxDiedError if the box is gone
    finally:
        terminal.reader.cancel()
        await asyncio.gather(terminal.reader, return_exceptions=True)
