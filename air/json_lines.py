"""Reads JSON-lines files, and appends lines to them.

`read` yields the lines of a whole file, `entries` also the entries of a JSON list, `Tail` only the lines that
are new since the last reading, and `load` those at known offsets. `read` and `entries` raise an error on a
malformed line. `Tail` and `load` do not, because they serve viewers, which must show a file whatever it
contains. `decode` parses any other JSON text: of a file, an agent, a client or a server.
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
"""The number of bytes before a reading position that are stored with it (in `Mark.seal`). If the file later
has other bytes in that place, it was rewritten."""


@dataclass(frozen=True)
class Mark:
    """A reading position in a file, with the file's size and modification time at that reading."""

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
    """Iterates once over the complete lines of a file after the reading position `mark`. At the end of the
    iteration, moves `mark` behind these lines."""

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
    """Parses JSON text and returns its value. Raises ValueError if the text is not JSON, or is nested too
    deeply for Python's parser, which raises RecursionError for such text."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read(path: Path, *, complete: bool = False) -> Iterator[tuple[str, Any]]:
    """Yields a pair for each line of a file: the text `FILE:NUMBER` (the path and the number of the line),
    and the line's JSON value. Skips empty lines and a half-written last line.

    Raises ConfigError if the file cannot be read or a line is not JSON; with `complete`, also if the last
    line is half-written.
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
    """Yields the entries of a file that is one JSON list, or JSON lines, as pairs: the place of the entry for
    error messages (path and number), and the entry. Raises ConfigError if the file cannot be read, or is
    neither."""
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
    """Whether a file must be read again: it was never read (`mark` is None), its size or modification time
    differs from `mark`, or it cannot be examined, for example because it was just removed."""
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
    """Reads and returns the JSON objects at the positions `spans` of a JSON-lines file. Each position is a
    pair (offset, length) in bytes.

    Raises ConfigError if a position holds no JSON object, because the file has changed, and OSError if the
    file cannot be read.
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
