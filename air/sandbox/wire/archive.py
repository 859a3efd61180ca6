"""Files on their way in and out of a box without a guest: places, and archives in the tar format.

An archive that comes out of a box is data to be distrusted: only regular files and folders are taken
from it, within bounds; `files.lay` sees to it that none of them lands elsewhere.
"""

from __future__ import annotations

import io
import os
import posixpath
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from air.errors import BoxFileError
from air.sandbox.docker import posix_shell
from air.sandbox.guest.files import MAX_DEPTH, MAX_ENTRIES
from air.sandbox.wire.folders import Entry

MOST_OVERHEAD = 64 << 20
"""Bytes that an archive may have beside the contents of its files."""
_BLOCK = tarfile.BLOCKSIZE
_HARMLESS = ("file changed as we read it", "file removed before we read it", "; padding with zeros")
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Place:
    """A path in one of the writable folders of a box."""

    root: str
    """The folder."""
    parts: tuple[str, ...]
    """What leads on from there; no part is empty, `.` or `..`."""

    @property
    def arguments(self) -> list[str]:
        """The place as arguments of a program in `posix_shell`."""
        return [self.root, *(posix_shell.escaped(os.fsencode(part)) for part in self.parts)]


def place(path: str, folders: Mapping[str, str]) -> Place:
    """Where a path, relative to the first of the folders, leads by its name alone.

    Raises:
        BoxFileError: to none of the folders.
    """
    if "\0" in path:
        raise BoxFileError("its name holds a NUL byte")
    path = posixpath.normpath(posixpath.join(next(iter(folders)), path))
    for root in sorted(folders, key=len, reverse=True):
        if path == root or path.startswith(root + "/"):
            parts = tuple(part for part in path[len(root) :].split("/") if part)
            if len(parts) > MAX_DEPTH:
                raise BoxFileError("it is too deep")
            return Place(root, parts)
    raise BoxFileError("it leads out of the box's writable folders")


def packed(entries: Sequence[Entry], above: tuple[str, ...]) -> Iterator[bytes]:
    """An archive for `shell.PUT`: every file under its number, and the plan that says where each
    goes, below the parts `above`."""
    members = [(str(i), e.data, e.mode) for i, e in enumerate(entries) if not e.folder]
    plan = "".join(f"{_step(i, entry, above)}\n" for i, entry in enumerate(entries))
    held = bytearray()
    for name, data, mode in [("plan", plan.encode(), 0o644), *members]:
        member = tarfile.TarInfo(name)
        member.size, member.mode = len(data), mode
        held += member.tobuf(tarfile.GNU_FORMAT) + data + bytes(-len(data) % _BLOCK)
        if len(held) >= _CHUNK:
            yield bytes(held)
            held.clear()
    yield bytes(held) + bytes(2 * _BLOCK)


def _step(index: int, entry: Entry, above: tuple[str, ...]) -> str:
    parts = [*above, *(part for part in entry.path.split("/") if part)]
    places = " ".join(f"'{posix_shell.escaped(os.fsencode(part))}'" for part in parts)
    return f"{'folder' if entry.folder else 'file'} {index} {places}"


def unpacked(data: bytes, *, max_bytes: int, above: int) -> list[Entry]:
    """What an archive of `shell.GET` holds: a folder and all below it, or one file.

    Args:
        max_bytes: most bytes that its files may have in all.
        above: how deep the thing itself lies.

    Raises:
        BoxFileError: it holds something else, or too much.
    """
    entries: list[Entry] = []
    contents: dict[str, bytes] = {}
    left = max_bytes
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:", errors="surrogateescape") as tar:
            for member in tar:
                path = posixpath.normpath(member.name)
                entry = Entry("" if path == "." else path, member.isdir(), member.mode)
                if not entry.folder:
                    entry.data = contents[path] = _contents(tar, member, contents)
                    left -= len(entry.data)
                if left < 0:
                    raise BoxFileError(f"it is larger than {max_bytes} bytes")
                entries.append(entry)
                if len(entries) > MAX_ENTRIES or above + path.count("/") + 1 > MAX_DEPTH:
                    raise BoxFileError("it holds too many files or is too deep")
    except (tarfile.TarError, ValueError, OverflowError, EOFError) as error:
        raise BoxFileError(f"its archive cannot be read: {error}") from error
    if not entries:
        raise BoxFileError("its archive is empty")
    if not entries[0].folder:
        entries[0].path = ""
        return entries[:1]
    return entries


def _contents(tar: tarfile.TarFile, member: tarfile.TarInfo, before: Mapping[str, bytes]) -> bytes:
    if member.islnk() and (linked := before.get(posixpath.normpath(member.linkname))) is not None:
        return linked
    plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.issparse()
    file = tar.extractfile(member) if plain else None
    if file is None:
        what = "is a link" if member.issym() or member.islnk() else "is not a regular file"
        raise BoxFileError(f"{member.name!r} {what}")
    return file.read()


def whole(said: list[str]) -> bool:
    """Whether the archive of `shell.GET` is complete, by what it said on standard error.

    The last line is the status of its tar, which may be 1 when a file was written to meanwhile, and
    only then.
    """
    status = said.pop() if said else ""
    harmless = all(any(sign in row for sign in _HARMLESS) for row in said)
    return status == "tar 0" or (status == "tar 1" and bool(said) and harmless)
