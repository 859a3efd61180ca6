"""What was run in a box: one file of JSON lines a box, `<cache>/boxes/<box>.jsonl`, for `air box logs`.

Written by the process that holds the box, readable by its user alone, appended to and never synced.
A file is bounded; what no longer fits is only counted. A record that cannot be written is said once
and costs no box anything. Commands are recorded as they were given, so they may hold secrets.

Lines, each with `t` in seconds since the epoch: `start`; for every command `run` (when it begins) and
`done` (when its answer is there), joined by `n`; `end`. A box without an `end` is live, or its
process was killed.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import shlex
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

from air import paths
from air.errors import MissingError
from air.sandbox.contract.box import BoxSpec, Command, ExecResult

MAX_BYTES = 1_000_000
"""Size of one file, its `end` aside."""
MAX_COMMAND = 300
"""Characters that are kept of a command."""
KEEP_FILES = 300
KEEP_SECONDS = 3 * 86400.0
_OPEN = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
_LOG = logging.getLogger(__name__)
_ended: deque[Path] = deque()
_said = False


def folder() -> Path:
    """Where the files lie; not created."""
    return paths.cache() / "boxes"


class Events:
    """The record of one box. Never raises: a box does not fail for its record."""

    def __init__(self, box: str) -> None:
        self._box = box
        self._fd = -1
        self._size = self._commands = self._unwritten = 0

    def start(self, spec: BoxSpec, *, run: str, owner: str, workspace: str) -> None:
        """Opens the file: the box is ready."""
        try:
            folder().mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = os.open(self._file, _OPEN, 0o600)
        except (OSError, MissingError) as error:
            _say(error)
            return
        told: dict[str, Any] = {
            "box": self._box,
            "provider": spec.provider,
            "image": spec.image,
            "run": run,
        }
        told |= {"owner": owner, "workspace": workspace, "limits": spec.limits.model_dump()}
        self._write("start", told)

    def run(self, command: Command) -> int:
        """A command begins; returns its number."""
        self._commands += 1
        self._write("run", {"n": self._commands, "command": shown(command)})
        return self._commands

    def done(self, number: int, result: ExecResult) -> None:
        """A command was answered."""
        told = {"n": number, "code": result.code, "seconds": round(result.seconds, 4)}
        told |= {"timed_out": result.timed_out, "truncated": result.truncated}
        self._write("done", told | {"bytes": [len(result.stdout), len(result.stderr)]})

    def failed(self, number: int, error: BaseException) -> None:
        """A command was cancelled, or its box died."""
        self._write("done", {"n": number, "error": f"{type(error).__name__}: {error}"[:300]})

    def end(self, reason: str) -> None:
        """Closes the file: the box is gone. Calling it twice is harmless."""
        counts = {"commands": self._commands, "unwritten": self._unwritten}
        self._write("end", {"reason": reason[:300]} | counts, last=True)
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        _ended.append(self._file)
        if len(_ended) > KEEP_FILES:  # a long run leaves no more than a collection would
            _remove(_ended.popleft())

    @property
    def _file(self) -> Path:
        return folder() / f"{self._box}.jsonl"

    def _write(self, kind: str, told: dict[str, Any], *, last: bool = False) -> None:
        if self._fd < 0:
            return
        if self._size > MAX_BYTES and not last:
            self._unwritten += 1
            return
        line = json.dumps({"t": round(time.time(), 3), "type": kind} | told).encode() + b"\n"
        try:
            self._size += os.write(self._fd, line)
        except OSError as error:
            _say(error)
            self._unwritten += 1


def shown(command: Command) -> str:
    """The first characters of a command, as it could be typed."""
    if isinstance(command, str):
        return command[:MAX_COMMAND]
    text = ""
    for part in command:  # one of 50,000 arguments is not quoted to the end
        text += (" " if text else "") + shlex.quote(part[:MAX_COMMAND])
        if len(text) > MAX_COMMAND:
            break
    return text[:MAX_COMMAND]


def _say(error: Exception) -> None:
    global _said
    if not _said:
        _LOG.warning("what runs in boxes is not recorded: %s", error)
        _said = True


F = TypeVar("F", bound=Callable[..., Awaitable[ExecResult]])


def recorded(method: F) -> F:
    """Decorates a box's `exec`: what it runs goes into `box.events`."""

    @functools.wraps(method)
    async def exec_(box: Any, command: Command, **options: Any) -> ExecResult:
        number = box.events.run(command)
        try:
            result = await method(box, command, **options)
        except BaseException as error:  # cancellation too: the record says how each command ended
            box.events.failed(number, error)
            raise
        box.events.done(number, result)
        return result

    return cast(F, exec_)


def read(file: Path, offset: int = 0) -> tuple[list[dict[str, Any]], int]:
    """The events of a file from a byte offset on, and the offset behind them.

    A last line that is not complete yet is left for the next time; one that a full disk cut is
    left out.

    Raises:
        OSError: the file cannot be read.
    """
    found = []
    with file.open("rb") as lines:
        lines.seek(offset)
        for line in lines:
            if not line.endswith(b"\n"):
                break
            offset += len(line)
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
    return found, offset


def find(name: str) -> list[Path]:
    """The files of boxes whose name, with or without `air-`, begins with `name`; latest first."""
    short = name.removeprefix("air-")
    files = folder().glob("air-*.jsonl")
    found = [f for f in files if f.stem.removeprefix("air-").startswith(short)]
    return [file for _, file in sorted(_aged(found), reverse=True)]


def collect(*, now: float | None = None) -> list[str]:
    """Removes files that are old, or beyond the number that is kept, oldest first; returns them.

    A user without a home folder has none.

    Args:
        now: seconds since the epoch; None: the present.
    """
    now = time.time() if now is None else now
    removed = []
    try:
        files = list(folder().glob("air-*.jsonl"))
    except MissingError:
        return []
    latest_first = sorted(_aged(files), reverse=True)
    for index, (changed, file) in enumerate(latest_first):
        if index >= KEEP_FILES or now - changed > KEEP_SECONDS:
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
            continue  # collected by another
