"""File copies between this machine (the host) and a box, an isolated place for commands such as a container:
lists the host files that `Box.put` copies into a box, and writes the files that `Box.get` copies out of it.

Symbolic links on the host are not followed. A path that comes from a box is untrusted, and must not lead out
of the target folder.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from air.errors import BoxFileError, InfrastructureError
from air.machine_failures import is_machine_failure

_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass
class Entry:
    """One file or folder that is copied into a box or out of a box."""

    path: str
    """The path relative to the copied folder. Empty for that folder itself, and for a single copied file."""
    folder: bool
    mode: int = 0o644
    """The permissions of the copy: 0o755 if the owner may execute the file, else 0o644."""
    data: bytes = b""
    """The contents of a file that is copied out of a box. Always empty for an entry that is copied into a
    box."""
    source: Path = Path()
    """The path on the host of an entry that is copied into a box. Not set for an entry that is copied out of
    a box."""


def below(source: Path) -> Iterator[Entry]:
    """Yields one entry for the host file or folder `source`, and one for each file and folder below it. A
    folder comes before its contents.

    Raises BoxFileError if `source` does not exist, or if an entry is a link or another special file.
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
    """Opens for reading a host file that `below` has listed, and returns the open file. Raises BoxFileError
    if that is impossible, for example because the file is now a link."""
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
    """Returns the permissions of the copy of a file with the permissions `mode`: 0o755 if the owner may
    execute the file, else 0o644."""
    return 0o755 if mode & 0o100 else 0o644


def lay(entries: list[Entry], dest: Path, name: str) -> None:
    """Writes `entries`, which come from a box, into the host folder `dest`, and creates this folder if it
    does not exist. If `entries` is a single file with an empty `Entry.path`, its copy is `dest/name`.

    Raises BoxFileError if the path of an entry leads out of `dest`, or if a file cannot be written. Raises
    InfrastructureError if this machine is the cause, for example because its disk is full.
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
        kind = InfrastructureError if is_machine_failure(error) else BoxFileError
        raise kind(f"{str(dest)!r}: {error.strerror}") from error


def _safe(path: str) -> Path:
    parts = path.split("/")
    if "\0" in path or (path != "." and any(part in ("", ".", "..") for part in parts)):
        raise BoxFileError(f"{path!r} would leave the folder that it is copied to")
    return Path(path)
