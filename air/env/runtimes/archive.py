"""Parses tar archives, in which files are copied out of a runtime of the library `verifiers`. Their content
is untrusted. (From air's own boxes, files are copied in another way.)

Only regular files and folders are accepted, up to limits on their size and number. The paths are not checked
here: `file_transfer.lay`, which writes the entries to disk, confines them to one folder.
"""

from __future__ import annotations

import io
import posixpath
import tarfile
from collections.abc import Mapping

from air.errors import BoxFileError
from air.sandbox.guest.files import MAX_DEPTH, MAX_ENTRIES
from air.sandbox.wire.file_transfer import Entry

MOST_OVERHEAD = 64 << 20
"""The maximum number of bytes in an archive besides the contents of files: headers and padding."""


def unpacked(data: bytes, *, max_bytes: int) -> list[Entry]:
    """Returns the files and folders in `data`, a tar archive of one folder or one file. If it is an archive
    of one file, the only entry has the path "".

    Raises BoxFileError if the archive is malformed or empty, if its files together have more than `max_bytes`
    bytes, if there are too many entries or they are nested too deeply, or if one is neither a regular file
    nor a folder.
    """
    entries: list[Entry] = []
    contents: dict[str, bytes] = {}
    room = max_bytes
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:", errors="surrogateescape") as tar:
            for member in tar:
                path = posixpath.normpath(member.name)
                entry = Entry("" if path == "." else path, member.isdir(), member.mode)
                if not entry.folder:
                    entry.data = contents[path] = _contents(tar, member, contents)
                    room -= len(entry.data)
                if room < 0:
                    raise BoxFileError(f"its files are larger than {max_bytes} bytes")
                entries.append(entry)
                if len(entries) > MAX_ENTRIES or path.count("/") + 1 > MAX_DEPTH:
                    raise BoxFileError("the folder holds too many files or is too deep")
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
