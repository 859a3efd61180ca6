"""Reads JSON-lines files, such as recorded episodes, and appends lines to them.

`read` yields the lines of a whole file. `entries` does the same, and also reads a file that is one JSON list.
`Tail` yields only the lines that are new since the last reading, and `load` reads the lines at known offsets.
All except `Tail` raise an error for a malformed line. `Tail` does not, because it serves viewers, which must
show a file whatever it contains. `decode` parses JSON text from any origin: a file, an agent, a client or a
server.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from air.errors import ConfigError, boundary

SEAL_BYTES = 64
"""The number of bytes directly before a reading position that `Mark.seal` stores. If the file later has other
bytes in that place, it was rewritten, and must be read from its start."""


@dataclass(frozen=True)
class Mark:
    """A position up to which a file has been read, with the file's size and modification time at that
    reading."""

    size: int = 0
    """The file's size when it was read, in bytes, including an incomplete last line."""
    mtime_ns: int = 0
    """The file's modification time when it was read, in nanoseconds."""
    offset: int = 0
    """The position of the first unread line: the number of bytes before it."""
    seal: bytes = b""
    """The last bytes before `offset`, at most `SEAL_BYTES`. If they change, the file was rewritten."""


@dataclass(frozen=True)
class Line:
    """One complete line of a JSON-lines file."""

    offset: int
    """The position of the line in the file: the number of bytes before it."""
    length: int
    """Length of the line in bytes, with its newline."""
    data: dict[str, Any] | None
    """The JSON object in the line, or None if the line is no JSON object."""


@dataclass
class Tail:
    """Reads the complete lines of a file that were added after the position `mark`. It can be iterated once,
    and yields `Line` objects. At the end of the iteration, `mark` is the position after these lines."""

    path: Path
    mark: Mark
    from_start: bool = False
    """Whether the iteration starts at the file's first line. True if the file is new or was rewritten."""

    def __post_init__(self) -> None:
        stat = self.path.stat()
        self._size, self._mtime_ns = stat.st_size, stat.st_mtime_ns
        self.from_start = self.mark.offset == 0 or not self._continues()
        if self.from_start:
            self.mark = Mark()

    def __iter__(self) -> Iterator[Line]:
        offset, seal = self.mark.offset, self.mark.seal
        with self.path.open("rb") as file:
            file.seek(offset)
            for text in file:
                if not text.endswith(b"\n"):
                    break  # half-written: read when it is complete
                yield Line(offset, len(text), parsed(text))
                offset += len(text)
                seal = (seal + text[-SEAL_BYTES:])[-SEAL_BYTES:]
        self.mark = Mark(self._size, self._mtime_ns, offset, seal)

    def _continues(self) -> bool:
        if self._size < self.mark.offset:
            return False
        with self.path.open("rb") as file:
            file.seek(self.mark.offset - len(self.mark.seal))
            return file.read(len(self.mark.seal)) == self.mark.seal


def decode(text: str | bytes) -> Any:
    """Parses JSON text and returns the value. Raises ValueError if the text is not JSON, or is nested too
    deeply for Python's parser (which itself raises RecursionError for such text)."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read(path: Path, *, complete: bool = False) -> Iterator[tuple[str, Any]]:
    """Yields a pair for each line of a file: the text `PATH:NUMBER`, where NUMBER counts the lines from 1,
    and the JSON value in the line. Skips empty lines and a half-written last line.

    Raises ConfigError if the file cannot be read or a line is not JSON. If `complete` is true, also raises
    ConfigError if the last line is half-written.
    """
    with (
        boundary(ConfigError, f"cannot read {path}", OSError),
        path.open(encoding="utf-8", errors="replace") as file,
    ):
        lines = file.read().rstrip("\n").split("\n")  # `splitlines` would also split at U+2028
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            value = decode(text)
        except ValueError as error:
            last = number == len(lines) and isinstance(error, json.JSONDecodeError)
            if last and not complete:
                return
            remedy = "correct or remove the line"
            raise ConfigError("not JSON", where=f"{path}:{number}", remedy=remedy) from None
        yield f"{path}:{number}", value


def entries(path: Path) -> Iterator[tuple[str, Any]]:
    """Yields the entries of a file that contains either one JSON list or JSON lines. Each entry comes as a
    pair: its place for error messages (the path, and the index in the list or the line number), and its JSON
    value. Raises ConfigError if the file cannot be read, or has another form."""
    with (
        boundary(ConfigError, f"cannot read {path}", OSError),
        path.open(encoding="utf-8", errors="replace") as file,
    ):
        listed = file.read(4096).lstrip().startswith("[")
    if listed:
        with contextlib.suppress(ValueError):  # not one JSON list: `read` names the bad line
            whole = decode(path.read_text(encoding="utf-8"))
            if isinstance(whole, list):
                yield from ((f"{path}[{number}]", entry) for number, entry in enumerate(whole))
                return
    yield from read(path, complete=True)


def changed(entry: os.DirEntry[str] | Path, mark: Mark | None) -> bool:
    """Returns whether a file must be read again: because it was never read (`mark` is None), because its size
    or modification time is not that of `mark`, or because it cannot be examined (for example, it was just
    removed)."""
    try:
        stat = entry.stat()
    except OSError:
        return True
    return mark is None or (stat.st_size, stat.st_mtime_ns) != (mark.size, mark.mtime_ns)


def parsed(text: bytes) -> dict[str, Any] | None:
    """Returns the JSON object in a line of a file, or None if the line holds no JSON object."""
    try:
        value = decode(text.decode("utf-8", errors="replace"))
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def load(path: Path, spans: Iterable[tuple[int, int]]) -> list[dict[str, Any]]:
    """Returns the JSON objects in some lines of a JSON-lines file, in the order of `spans`. Each element of
    `spans` is a pair (offset, length) in bytes: the place of one line.

    Raises ConfigError if such a place does not contain a JSON object, because the file has changed. Raises
    OSError if the file cannot be read.
    """
    lines = []
    with path.open("rb") as file:
        for offset, length in spans:
            file.seek(offset)
            line = parsed(file.read(length))
            if line is None:
                remedy = "open it again"
                raise ConfigError("has changed while it was shown", where=str(path), remedy=remedy)
            lines.append(line)
    return lines


def append(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Appends each dict of `rows` to the file at `path`, as one line of JSON. Raises OSError, with the file's
    name, if the lines cannot be written, for example because the disk is full."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
