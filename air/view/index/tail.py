"""Reads only the lines that were appended to a JSON-lines file since its last reading."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from air.errors import ConfigError

SEAL_BYTES = 64
"""Number of bytes before its offset that a `Mark` stores; if they differ from the file, it was rewritten."""


@dataclass(frozen=True)
class Mark:
    """Reading position in a file: how far the file was read, and the file's state at that time."""

    size: int = 0
    """The file's size at that time, in bytes, including an incomplete last line."""
    mtime_ns: int = 0
    """The file's modification time at that time, in nanoseconds."""
    offset: int = 0
    """Where the first unread line starts, in bytes."""
    seal: bytes = b""
    """The file's last bytes before `offset`, at most `SEAL_BYTES`; they show whether it was rewritten."""


@dataclass(frozen=True)
class Line:
    """One complete line of a JSON-lines file."""

    offset: int
    """Where the line starts in the file, in bytes."""
    length: int
    """Length of the line in bytes, with its newline."""
    data: dict[str, Any] | None
    """The line's JSON object, or None if it holds none."""


@dataclass
class Tail:
    """The complete lines of a file after the position `mark`, as an iterable.

    Iterate only once; at the end `mark` is the new position.
    """

    path: Path
    mark: Mark
    anew: bool = False
    """Whether reading starts at the first line, because the file is new or was rewritten."""

    def __post_init__(self) -> None:
        stat = self.path.stat()
        self._size, self._mtime_ns = stat.st_size, stat.st_mtime_ns
        self.anew = self.mark.offset == 0 or not self._continues()
        if self.anew:
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


def changed(entry: os.DirEntry[str] | Path, mark: Mark | None) -> bool:
    """Whether a file must be read again.

    That is so if it has no mark, if its size or modification time differs from the mark, or if it has just
    been removed.
    """
    try:
        stat = entry.stat()
    except OSError:
        return True
    return mark is None or (stat.st_size, stat.st_mtime_ns) != (mark.size, mark.mtime_ns)


def parsed(text: bytes) -> dict[str, Any] | None:
    """Returns the JSON object that a line holds, or None if it holds none."""
    try:
        value = json.loads(text.decode("utf-8", errors="replace"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def load(path: Path, spans: Iterable[tuple[int, int]]) -> list[dict[str, Any]]:
    """Reads the lines at these (offset, length) positions, in bytes, and returns their JSON objects.

    Raises:
        ConfigError: the file has changed, so that a position holds no JSON object.
        OSError: the file cannot be read.
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
