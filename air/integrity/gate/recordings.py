"""Makes hacks of Harbor tasks out of recorded trajectories of agents, in ATIF (Agent Trajectory Interchange
Format), and replays them in a box (container)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from air import json_lines
from air.errors import BoxCommandError, BoxFileError, ConfigError, MissingError
from air.integrity.gate.hacks import Hack
from air.sandbox.contract.box import Box
from air.sandbox.contract.running_command import RunningCommand
from air.trajectories.atif.reading import Input, Recording, recording
from air.trajectories.atif.rules import Object

PREFIX = "trajectory:"
"""The names of hacks that replay a trajectory begin with this text; the name of the file follows."""
REPLAY_SECONDS = 600.0
"""The time limit for replaying one trajectory, in seconds."""
COMMAND_SECONDS = 120.0
"""The time limit of one command of a trajectory, in seconds. Keystrokes have the time that the agent waited,
and `EXTRA_SECONDS`."""
EXTRA_SECONDS = 5.0
_SILENCE = 0.3
_LONGEST_LINE = 4094
"""The number of bytes that a terminal keeps of a line, unless the program edits the line itself, as bash
does."""
_PROMPT = b"\x1b]0;air-prompt\x07"
"""The text that the shell writes before each prompt. Terminals do not show it."""
_FLAW = "the commands of a recorded trajectory earn a reward, and are not the solution"


def recorded_hacks(source: Path, folders: Mapping[str, Path]) -> dict[str, list[Hack]]:
    """Reads trajectories, and returns hacks that replay them, by the id of the task to which they belong.

    `folders` are the folders of the tasks, by id. `source` is a file with one trajectory, which belongs to
    the only task; or a folder. Trajectories in `source/NAME` belong to the task whose folder is `NAME`. If
    there is only one task, and no such folder, all trajectories in `source` belong to it.

    Raises MissingError if `source` does not exist, and ConfigError if a trajectory is invalid, or if no
    trajectory belongs to a task.
    """
    if not source.exists():
        raise MissingError("does not exist", where=str(source), remedy="check --trajectories")
    if source.is_file():
        return _of_file(source, folders)
    hacks = {}
    for task, folder in folders.items():
        own = source / folder.name
        if not own.is_dir():
            if len(folders) > 1:
                continue
            own = source
        documents = ((file, _document(file)) for file in sorted(own.rglob("*.json")))
        hacks[task] = [
            _hack(file.relative_to(source).as_posix(), file, document)
            for file, document in documents
            if _is_atif(document)
        ]
    if not any(hacks.values()):
        raise ConfigError(
            "contains no ATIF trajectory of a task that is checked",
            where=str(source),
            remedy=f"put the trajectories into {source}/NAME, where NAME is the task's folder",
        )
    return hacks


def _of_file(file: Path, folders: Mapping[str, Path]) -> dict[str, list[Hack]]:
    if len(folders) != 1:
        raise ConfigError(
            f"is one trajectory, and {len(folders)} tasks are checked",
            where=str(file),
            remedy="check one task, or name a folder with a subfolder for each task",
        )
    document = _document(file)
    if not _is_atif(document):
        raise ConfigError(
            "is no trajectory in ATIF: schema_version must begin with `ATIF-v`",
            where=f"{file}: schema_version",
            remedy="name a file such as agent/trajectory.json of a trial of Harbor",
        )
    return {next(iter(folders)): [_hack(file.name, file, document)]}


def _document(file: Path) -> Object:
    try:
        document = json_lines.decode(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"is no readable JSON: {error}", where=str(file), remedy="repair or remove this file"
        ) from None
    return document if isinstance(document, dict) else {}


def _is_atif(document: Object) -> bool:
    return str(document.get("schema_version", "")).startswith("ATIF-v")


def _hack(name: str, file: Path, document: Object) -> Hack:
    return Hack(f"{PREFIX}{name}", _FLAW, "", recording=recording(document, str(file)))


async def replay(box: Box, one: Recording, seconds: float) -> str:
    """Runs the inputs of a recording in a new shell in `box`, in a terminal, in their order. Takes at most
    `seconds` seconds. The shell stays alive afterwards, as a real agent's terminal does. Returns a message if
    not all inputs were run, or a command did not end in time; otherwise an empty string."""
    note = ""
    if box.shell.endswith("bash"):
        # Terminus-2 types into a login shell; tools run commands without start-up files.
        login = any(each.typed for each in one.inputs)
        argv = [box.shell, *(("--login",) if login else ("--norc", "-i"))]
        env = {"PROMPT_COMMAND": "printf '\\033]0;air-prompt\\007'"}
    else:
        argv, env = [box.shell or "sh", "-i"], {"PS1": f"{_PROMPT.decode()}$ "}
        lines = [line for each in one.inputs if each.typed for line in each.text.split("\n")]
        if any(len(line.encode()) > _LONGEST_LINE for line in lines):
            note = f"lines of more than {_LONGEST_LINE} bytes were cut, because the box has no bash"
    try:
        shell = await box.start(argv, env={"TERM": "xterm", **env}, terminal=(40, 160))
    except BoxCommandError as error:
        return f"the shell did not start: {error}"
    terminal = _Terminal(box, shell, time.monotonic() + seconds)
    reader = asyncio.create_task(terminal.read())
    try:
        return "; ".join(filter(None, [await terminal.run(one.inputs), note]))
    finally:
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)


class _Terminal:
    """The terminal of a shell in a box. Runs the inputs of an agent in it."""

    def __init__(self, box: Box, shell: RunningCommand, deadline: float) -> None:
        self._box, self._shell, self._deadline = box, shell, deadline
        self._tail = b""
        """The last output since the last input that ended a line."""
        self._changed = time.monotonic()
        self._ended = asyncio.Event()

    async def read(self) -> None:
        """Reads the shell's output until the shell ends."""
        try:
            async for _, data in self._shell.output():
                self._tail = (self._tail + data)[-10_000:]
                self._changed = time.monotonic()
        finally:  # also if the box is gone: the next call to it raises the error
            self._ended.set()

    async def run(self, inputs: Sequence[Input]) -> str:
        """Runs the inputs in their order; returns a message if not all of them were run to their end."""
        stopped = 0
        await self._prompt(EXTRA_SECONDS)
        for number, one in enumerate(inputs):
            ended = self._ended.is_set()
            if ended or time.monotonic() >= self._deadline:
                why = "the shell ended" if ended else "the time was over"
                return f"{why} before input {number + 1} of {len(inputs)}"
            try:
                if one.typed:
                    await self._type(one)
                else:
                    stopped += not await self._command(one.text)
            except (BoxCommandError, BoxFileError) as error:  # caused by the recorded commands
                return f"input {number + 1} of {len(inputs)} could not be run: {error}"
        return f"{stopped} commands did not end in time" if stopped else ""

    async def _type(self, one: Input) -> None:
        # A prompt that comes before the end of the line is the prompt of an earlier input.
        if "\n" in one.text or "\r" in one.text:
            self._tail = b""
            await self._write(one.text)
            await self._prompt(one.seconds + EXTRA_SECONDS)
        else:
            await self._write(one.text)
            await self._sleep(one.seconds)

    async def _command(self, text: str) -> bool:
        """Runs a command, and returns whether it ended in time. A command that did not is interrupted.
        A command such as `exit` also ends the shell."""
        file = "/tmp/.air-replay"
        await self._box.write(file, text.encode())
        self._tail = b""
        line = f' eval "$(cat {file}; rm -f {file})" < /dev/null > /dev/null 2>&1\n'
        await self._write(line)
        if await self._prompt(COMMAND_SECONDS) or self._ended.is_set():
            return True
        for key in ("\x03", "\x1c"):
            self._tail = b""
            await self._write(key)
            if await self._prompt(2.0):
                break
        return False

    async def _write(self, text: str) -> None:
        # A program that reads nothing would block the write for ever.
        left = max(self._deadline - time.monotonic(), 1.0)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._shell.write(text.encode()), left)

    async def _prompt(self, seconds: float) -> bool:
        """Waits until the shell waits for a command, at most `seconds` seconds; returns whether it does."""
        end = min(time.monotonic() + seconds, self._deadline)
        while time.monotonic() < end and not self._ended.is_set():
            _, mark, after = self._tail.rpartition(_PROMPT)
            # A line end after the prompt: the shell already runs a command that was typed ahead.
            silent = time.monotonic() - self._changed >= _SILENCE
            if mark and silent and b"\n" not in after:
                return True
            await asyncio.sleep(0.05)
        return False

    async def _sleep(self, seconds: float) -> None:
        seconds = min(seconds, self._deadline - time.monotonic())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), seconds)
