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
"""Bytes before the mark that are remembered; if they have changed, the file was written anew."""


@dataclass(frozen=True)
class Mark:
    """How far a file was read."""

    size: int = 0
    """The file's size then, in bytes; a half-written last line included."""
    mtime_ns: int = 0
    offset: int = 0
    """Where the first unread line starts, in bytes."""
    seal: bytes = b""
    """The bytes right before the offset."""


@dataclass(frozen=True)
class Line:
    """One whole line."""

    offset: int
    """In bytes."""
    length: int
    """In bytes, its newline included."""
    data: dict[str, Any] | None
    """None if the line is not a JSON object."""


@dataclass
class Tail:
    """The new lines of a file. Iterate over it once, then take its mark."""

    path: Path
    mark: Mark
    anew: bool = False
    """Whether it starts at the first line, since the file was written anew."""

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
    """Whether a file's size or time differ from its mark, or the file has just gone."""
    try:
        stat = entry.stat()
    except OSError:
        return True
    return mark is None or (stat.st_size, stat.st_mtime_ns) != (mark.size, mark.mtime_ns)


def parsed(text: bytes) -> dict[str, Any] | None:
    """The JSON object of a line; None if there is none."""
    try:
        value = json.loads(text.decode("utf-8", errors="replace"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def load(path: Path, spans: Iterable[tuple[int, int]]) -> list[dict[str, Any]]:
    """The lines at these offsets and lengths, in bytes.

    Raises:
        ConfigError: the file has changed.
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
