"""Records the commands of each box for `air box logs`, as JSON lines in the file `boxes/<box>.jsonl` of the
user's cache folder (`air.paths.cache`).

The process that started the box writes the file. Only the user of this process can read the file, because
commands may contain secrets. Every line has a `type` and a time `t` (epoch seconds). The first line is
`start`. A line `use` says what the box is used for. Each command has two lines, `run` and `done`, with the
command's number `n`, counted from 1. The last line is `end`; it is missing if the box still exists, or if the
process that started the box was killed.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import os
import shlex
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from air import paths
from air.errors import MissingError
from air.json_lines import Mark, Tail
from air.sandbox.contract.box import BoxSpec, Command, ExecResult

MAX_BYTES = 1_000_000
"""Size in bytes at which a log file counts as full. A full file gets only one more line, its last line
`end`."""
MAX_COMMAND = 300
"""The maximum number of characters of a command's text that the log contains; the rest is left out."""
KEEP_FILES = 300
KEEP_SECONDS = 3 * 86400.0
_OPEN = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
_LOG = logging.getLogger(__name__)
_ended: deque[Path] = deque()
_warned = False


def folder() -> Path:
    """Returns the folder of the command logs of all boxes. Does not create it. Raises MissingError if the
    user has no home folder."""
    return paths.cache() / "boxes"


class CommandLog:
    """Writes the command log of one box. Errors are logged, never raised, because a box must continue if its
    log cannot be written."""

    def __init__(self, box: str) -> None:
        self._box = box
        self._fd = -1
        self._size = self._commands = self._unwritten = 0

    def start(self, spec: BoxSpec, *, run: str, owner: str, workspace: str) -> None:
        """Creates the log file of the box, and records in its first line that the box is ready. The line also
        contains some of the settings `spec`, the id `run` of the run of air, the label `owner` of the process
        that started the box (`host:pid:start`), and the path `workspace` of the box's workspace."""
        try:
            folder().mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = os.open(self._file, _OPEN, 0o600)
        except (OSError, MissingError) as error:
            _say(error)
            return
        names = {"box": self._box, "provider": spec.provider, "image": spec.image, "run": run}
        limits = spec.limits.model_dump()
        self._write("start", names | {"owner": owner, "workspace": workspace, "limits": limits})

    def use(self, facts: Mapping[str, Any]) -> None:
        """Records what the box is used for from now on. `facts` are the keyword arguments of `Box.note_use`,
        such as `run` and `task`."""
        self._write("use", dict(facts))

    def run(self, command: Command) -> int:
        """Records that a command begins. Returns the command's number, which is to be passed to `done` or
        `failed`."""
        self._commands += 1
        self._write("run", {"n": self._commands, "command": command_text(command)})
        return self._commands

    def done(self, number: int, result: ExecResult) -> None:
        """Records the result of a command. `number` is the command's number, which `run` returned."""
        fields = {"n": number, "code": result.code, "seconds": round(result.seconds, 4)}
        fields |= {"timed_out": result.timed_out, "truncated": result.truncated}
        self._write("done", fields | {"bytes": [len(result.stdout), len(result.stderr)]})

    def failed(self, number: int, error: BaseException) -> None:
        """Records that a command ended without a result, because it was cancelled or its box died. `number`
        is the command's number, which `run` returned. The record contains the text of `error`."""
        self._write("done", {"n": number, "error": f"{type(error).__name__}: {error}"[:300]})

    def end(self, reason: str) -> None:
        """Records that the box is gone, and the `reason` for it. Closes the log file. A second call does
        nothing."""
        counts = {"commands": self._commands, "unwritten": self._unwritten}
        self._write("end", {"reason": reason[:300]} | counts, last=True)
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        _ended.append(self._file)
        if len(_ended) > KEEP_FILES:  # limits the log files of a long run, like `collect`
            _remove(_ended.popleft())

    @property
    def _file(self) -> Path:
        return folder() / f"{self._box}.jsonl"

    def _write(self, kind: str, fields: dict[str, Any], *, last: bool = False) -> None:
        if self._fd < 0:
            return
        if self._size > MAX_BYTES and not last:
            self._unwritten += 1
            return
        line = json.dumps({"t": round(time.time(), 3), "type": kind} | fields).encode() + b"\n"
        try:
            self._size += os.write(self._fd, line)
        except OSError as error:
            _say(error)
            self._unwritten += 1


def command_text(command: Command) -> str:
    """Returns a command as text of at most `MAX_COMMAND` characters. The arguments of a list are quoted as
    for a shell."""
    if isinstance(command, str):
        return command[:MAX_COMMAND]
    text = ""
    for part in command:  # there may be 50,000 arguments
        text += (" " if text else "") + shlex.quote(part[:MAX_COMMAND])
        if len(text) > MAX_COMMAND:
            break
    return text[:MAX_COMMAND]


def _say(error: Exception) -> None:
    global _warned
    if not _warned:
        _LOG.warning("commands in boxes are not recorded: %s", error)
        _warned = True


F = TypeVar("F", bound=Callable[..., Awaitable[ExecResult]])


def recorded(method: F) -> F:
    """Decorator for the method `exec` of a box: writes each command and its result into the box's log."""

    @functools.wraps(method)
    async def exec_(box: Any, command: Command, **options: Any) -> ExecResult:
        number = box.command_log.run(command)
        try:
            result = await method(box, command, **options)
        except BaseException as error:  # cancellation too: the record says how each command ended
            box.command_log.failed(number, error)
            raise
        box.command_log.done(number, result)
        return result

    return cast(F, exec_)


def read(file: Path, mark: Mark | None = None) -> tuple[list[dict[str, Any]], Mark]:
    """Reads the complete lines of a log file, from the position `mark` on, which an earlier call returned.
    None means the beginning of the file.

    Returns a pair: the records, and the position after them for the next call. Skips lines that are not JSON
    objects, for example because the disk was full. Raises OSError if the file cannot be read.
    """
    tail = Tail(file, mark or Mark())
    return [line.data for line in tail if line.data is not None], tail.mark


def opening(file: Path, lines: int = 20) -> dict[str, dict[str, Any]]:
    """Reads the first `lines` lines of the log file `file` of a box. Returns the records that tell how the
    box was started (type `start`) and what the box is used for (type `use`), as a dict: type -> record. If a
    type has several records, the last of them is returned.

    If the file has no record of a type, the dict lacks the type. Raises OSError if the file cannot be read.
    """
    first = itertools.islice(Tail(file, Mark()), lines)
    records = {str(line.data.get("type")): line.data for line in first if line.data is not None}
    return {kind: records[kind] for kind in ("start", "use") if kind in records}


def find(name: str) -> list[Path]:
    """Returns the log files of the boxes whose name begins with `name`, newest first. The prefix `air-` of
    the name may be left out. Returns an empty list if there is no such file."""
    short = name.removeprefix("air-")
    files = folder().glob("air-*.jsonl")
    logs = [f for f in files if f.stem.removeprefix("air-").startswith(short)]
    return [file for _, file in sorted(_aged(logs), reverse=True)]


def collect(*, now: float | None = None) -> list[str]:
    """Removes log files that are older than `KEEP_SECONDS`, and all but the newest `KEEP_FILES`. Returns the
    paths of the removed files.

    Removes nothing if the user has no home folder. Ages are counted from `now`, in epoch seconds; None means
    the present time.
    """
    now = time.time() if now is None else now
    removed = []
    try:
        files = list(folder().glob("air-*.jsonl"))
    except MissingError:
        return []
    newest_first = sorted(_aged(files), reverse=True)
    for index, (modified_at, file) in enumerate(newest_first):
        if index >= KEEP_FILES or now - modified_at > KEEP_SECONDS:
            _remove(file)
            removed.append(str(file))
    return removed


def _remove(file: Path) -> None:
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        _say(error)


def _aged(files: Iterable[Path]) -> Iterator[tuple[float, Path]]:
    for file in files:
        try:
            yield file.stat().st_mtime, file
        except FileNotFoundError:
            continue  # another process has removed it
