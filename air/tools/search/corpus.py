"""Reads a corpus for the tool `search`: a JSON Lines file with a passage `{"text": …, "title": …, "id": …}`
in each line. Only `text` is required.

Only the offsets and the checksums of the lines are kept in memory. A passage is read from the file when a
search shows it.
"""

from __future__ import annotations

import hashlib
import zlib
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from air import json_lines
from air.errors import ConfigError, InfrastructureError, MissingError, boundary


@dataclass(frozen=True)
class Passage:
    """A passage of a corpus: one line of its file."""

    id: str
    """The field `id` of the line, or the line's number, from 1, if the field is missing."""
    title: str
    text: str

    @property
    def whole(self) -> str:
        """The title and the text together, which is what a search index contains."""
        return f"{self.title}\n{self.text}" if self.title else self.text


class Corpus:
    """The passages of a JSON Lines file. The attribute `digest` is the SHA-256, in hex, of the file. The
    constructor raises MissingError if the file does not exist, and ConfigError if a line is malformed or the
    file has no passage. Reading a passage later raises InfrastructureError if the file cannot be read or the
    passage's line has changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offsets = array("Q")
        self._numbers = array("Q")
        self._checksums = array("I")
        digest = hashlib.sha256()
        for offset, number, line in _lines(path):
            digest.update(line)
            if line.strip():
                _parsed(line, path, number)
                self._offsets.append(offset)
                self._numbers.append(number)
                self._checksums.append(zlib.crc32(line))
        if not self._offsets:
            raise ConfigError("the corpus has no passage", where=str(path), remedy="add lines")
        self.digest = digest.hexdigest()

    def __len__(self) -> int:
        return len(self._offsets)

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        with (
            boundary(InfrastructureError, "the corpus cannot be read any more", OSError),
            self.path.open("rb") as file,
        ):
            yield file

    def __iter__(self) -> Iterator[Passage]:
        with self._opened() as file:
            for position in range(len(self)):
                yield self._passage(file, position)

    def read(self, position: int) -> Passage:
        """Reads the passage at `position` in the corpus, counted from 0."""
        with self._opened() as file:
            return self._passage(file, position)

    def _passage(self, file: BinaryIO, position: int) -> Passage:
        number = self._numbers[position]
        file.seek(self._offsets[position])
        line = file.readline()
        if zlib.crc32(line) != self._checksums[position]:
            raise InfrastructureError(
                f"the corpus has changed during the run: {self.path}:{number}"
            )
        return _parsed(line, self.path, number)


def _lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Yields for each line of the file a tuple: the line's offset in bytes, its number (from 1) and its
    bytes."""
    offset = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                yield offset, number, line
                offset += len(line)
    except FileNotFoundError:
        raise MissingError("no such file", where=str(path), remedy="check the path") from None
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=str(path)) from None


def _parsed(line: bytes, path: Path, number: int) -> Passage:
    where, remedy = f"{path}:{number}", 'write {"title": "…", "text": "…"}'
    try:
        value: Any = json_lines.decode(line)
    except ValueError:
        raise ConfigError("not JSON", where=where, remedy=remedy) from None
    text = value.get("text") if isinstance(value, dict) else None
    if not isinstance(text, str) or not text.strip():
        raise ConfigError("the line has no `text`", where=where, remedy=remedy)
    title = value.get("title") or ""
    if not isinstance(title, str):
        raise ConfigError("`title` is no text", where=where, remedy=remedy)
    return Passage(str(value.get("id", number)), title.strip(), text.strip())
