"""Files on the host: lists a folder for `put`, and writes a folder for `get`.

The host trusts neither side: it follows no link in what it sends, and no path from a box leads out of the
folder that is written.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from air.errors import BoxFileError

_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass
class Entry:
    """One file or folder of a copy."""

    path: str
    """Relative, `/` between parts; empty for the copied file or folder itself."""
    folder: bool
    """Whether it is a folder."""
    mode: int = 0o644
    """0o755 if its owner may execute it, else 0o644."""
    data: bytes = b""
    """The contents of a file that came out of a box."""
    source: Path = Path()
    """The host file or folder of an entry that goes into a box."""


def below(source: Path) -> Iterator[Entry]:
    """Lists the file `source`, or the folder `source` and all below it, folders first. Reads no file.

    Raises:
        BoxFileError: absent, a link, or something that is neither a file nor a folder.
    """
    yield from _entries(source, "")


def _entries(path: Path, relative: str) -> Iterator[Entry]:
    try:
        kind = path.lstat().st_mode
        if stat.S_ISDIR(kind):
            yield Entry(relative, True, source=path)
            for inner in sorted(path.iterdir()):
                name = f"{relative}/{inner.name}" if relative else inner.name
                yield from _entries(inner, name)
            return
        if not stat.S_ISREG(kind):
            what = "a link" if stat.S_ISLNK(kind) else "neither a file nor a folder"
            raise BoxFileError(f"{str(path)!r} is {what}: it is not copied into a box")
        yield Entry(relative, False, executable(kind), source=path)
    except OSError as error:
        raise BoxFileError(f"{str(path)!r}: {error.strerror}") from error


def opened(path: Path) -> BinaryIO:
    """A host file that `below` listed, open for reading.

    Raises:
        BoxFileError: it cannot be read, or is no longer a regular file.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        file = os.fdopen(fd, "rb")
    except OSError as error:
        raise BoxFileError(f"{str(path)!r}: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        file.close()
        raise BoxFileError(f"{str(path)!r} changed while it was copied into a box")
    return file


def executable(mode: int) -> int:
    """The mode of a copy: it keeps only whether the owner may execute the file."""
    return 0o755 if mode & 0o100 else 0o644


def lay(entries: list[Entry], dest: Path, name: str) -> None:
    """Writes the entries from a box: a single file as `dest/name`, a folder's contents into `dest`.

    Raises:
        BoxFileError: a path that would leave `dest`, or the host cannot write.
    """
    try:
        dest.mkdir(parents=True, exist_ok=True)
        for entry in entries:
            target = dest / _safe(entry.path or ("." if entry.folder else name))
            if entry.folder:
                target.mkdir(exist_ok=True)
                continue
            with os.fdopen(os.open(target, _NEW, 0o644), "wb") as file:
                file.write(entry.data)
                os.fchmod(file.fileno(), executable(entry.mode))
    except OSError as error:
        raise BoxFileError(f"{str(dest)!r}: {error.strerror}") from error


def _safe(path: str) -> Path:
    parts = path.split("/")
    if "\0" in path or (path != "." and any(part in ("", ".", "..") for part in parts)):
        raise BoxFileError(f"{path!r} would leave the folder that it is copied to")
    return Path(path)
