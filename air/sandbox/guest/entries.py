"""Handles the requests about entries of folders (files, subfolders, links): `stat`, `list`, `gather`,
`remove`, `rename` and `make`. Part of the guest, air's program in a box.

All paths are opened by `Files`, which decides which paths are allowed. Standard library only, Python >= 3.8,
no import of `air`.
"""

# ruff: noqa: PTH118, PTH208
from __future__ import annotations

import errno
import os
import stat

from air.sandbox.guest import accounts
from air.sandbox.guest.files import (
    CHUNK,
    MAX_DEPTH,
    MAX_ENTRIES,
    AnswerFrames,
    Files,
    Refused,
    names_in,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BATCH = 256
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LISTED = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Entries:
    """Handles requests about entries of folders (files, subfolders, links): describes, reads, removes,
    renames and makes entries. The argument `header` of each method is the request."""

    def __init__(self, files: Files) -> None:
        self.files = files

    def stat(self, header: dict[str, Any], _: bytes) -> dict[str, Any]:
        """Returns the answer `{"entry": description}` for the file, folder or link at the path
        `header["path"]`. The description is a dict, as `described` returns it. The request's body is
        ignored."""
        folder, name = self.files.parent(header["path"])
        try:
            return {"entry": described(folder, name, header["path"], accounts.names())}
        finally:
            os.close(folder)

    def list(self, header: dict[str, Any]) -> AnswerFrames:
        """Yields descriptions of the entries below the folder `header["path"]`, in pieces: each piece is a
        pair (`{"entries": list of dicts as described returns them}`, empty bytes).

        `header["depth"]` is the number of levels: 1 means only the folder's own entries. More than
        `MAX_DEPTH` levels are never listed. Links to folders are not entered.
        """
        top: str = header["path"]
        pending = [(top, 1)]
        names, count = accounts.names(), 0
        while pending:
            path, depth = pending.pop()
            fd = self._opened(path, follow=path == top)
            try:
                batch = []
                for name in names_in(fd, MAX_ENTRIES - count):
                    count += 1
                    below = os.path.join(path, name)
                    try:
                        batch.append(described(fd, name, below, names))
                    except FileNotFoundError:  # a command has removed it meanwhile
                        continue
                    real = batch[-1]["kind"] == "folder" and not batch[-1]["link"]
                    if real and depth < min(header["depth"], MAX_DEPTH):
                        pending.append((below, depth + 1))
                    if len(batch) == BATCH:
                        yield {"entries": batch}, b""
                        batch = []
                yield {"entries": batch}, b""
            finally:
                os.close(fd)

    def gather(self, header: dict[str, Any]) -> AnswerFrames:
        """Yields the files, folders and links at the paths `header["paths"]` and, if `header["tree"]` is
        true, everything in the folders among them. Each yielded piece is a pair (header, bytes).

        A piece whose header has the key `path` starts a new file, folder or link. An empty header means that
        the bytes continue the previous file.
        """
        gathering = Gathering(header, self.files.kernel)
        for path in header["paths"]:
            try:
                folder, name = self.files.parent(path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            try:
                yield from gathering.entry(folder, name or ".", path, 0)
            finally:
                os.close(folder)

    def remove(self, header: dict[str, Any]) -> AnswerFrames:
        """Removes the file, link or folder at the path `header["path"]`, and everything below it. Yields
        empty pieces during the work, so that the guest (this program) can handle other requests meanwhile."""
        folder, name = self.files.parent(header["path"])
        try:
            if not name:
                raise Refused("it is a folder of the box that cannot be removed")
            for count, _ in enumerate(removed(folder, name)):
                if count % BATCH == 0:
                    yield {}, b""
        finally:
            os.close(folder)

    def rename(self, header: dict[str, Any], _: bytes) -> dict[str, Any]:
        """Moves the file, link or folder `header["path"]` to the path `header["to"]`. An existing file at the
        new path is replaced. Returns the answer `{"entry": description of the moved entry}`. The request's
        body is ignored."""
        source, old = self.files.parent(header["path"])
        try:
            target, new = self.files.parent(header["to"], make=True)
            try:
                if not (old and new):
                    raise Refused("it is a folder of the box that cannot be moved")
                os.rename(old, new, src_dir_fd=source, dst_dir_fd=target)
                return {"entry": described(target, new, header["to"], accounts.names())}
            finally:
                os.close(target)
        finally:
            os.close(source)

    def make(self, header: dict[str, Any], _: bytes) -> dict[str, Any]:
        """Makes the folder `header["path"]` and its missing parents. Returns the answer `{"made": true}` if
        the folder is new, and `{"made": false}` if it existed. The request's body is ignored. Raises Refused
        if the path exists and is not a folder."""
        folder, name = self.files.parent(header["path"], make=True)
        try:
            os.mkdir(name or ".", 0o755, dir_fd=folder)
            return {"made": True}
        except FileExistsError:
            if not stat.S_ISDIR(os.stat(name or ".", dir_fd=folder).st_mode):
                raise Refused(
                    "it exists and is not a folder: remove it, or name another path"
                ) from None
            return {"made": False}
        finally:
            os.close(folder)

    def _opened(self, path: str, follow: bool) -> int:
        folder, name = self.files.parent(path)
        try:
            flags = _LISTED & ~os.O_NOFOLLOW if follow and self.files.follows else _LISTED
            return os.open(name or ".", flags, dir_fd=folder)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise Refused("it is not a folder") from None
            raise
        finally:
            os.close(folder)


class Gathering:
    """Reads files, folders and links for one `gather` request, by which `Box.gather` reads many files at
    once. Counts the entries and their bytes, and raises Refused if a limit of the request is exceeded.

    `header` is the request. `kernel` is the device number of /proc, as in `Files.kernel`.
    """

    def __init__(self, header: dict[str, Any], kernel: int) -> None:
        self.tree: bool = header["tree"]
        self.room: int = header["max_bytes"]
        self.bytes: int = header["all_bytes"]
        self.entries: int = header["max_entries"]
        self.kernel = kernel

    def entry(self, folder: int, name: str, path: str, depth: int) -> AnswerFrames:
        """Yields the pieces of the answer for one entry: the entry `name` of the folder with the file
        descriptor `folder`. If the entry is a folder and the request asked for whole folders (`tree`), also
        yields everything in it. Yields nothing if there is no such entry. `path` is the entry's path in the
        answer. `depth` is the number of folders between the requested path and the entry."""
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return
        if status.st_dev == self.kernel:
            raise Refused("the files of /proc are for commands only")
        self.entries -= 1
        if self.entries < 0 or depth > MAX_DEPTH:
            raise Refused("there are too many files, or folders are too deep")
        header = {"path": path, "mode": stat.S_IMODE(status.st_mode), "kind": "other"}
        header.update(uid=status.st_uid, gid=status.st_gid)
        try:
            if stat.S_ISLNK(status.st_mode):
                link = os.readlink(name, dir_fd=folder)
                yield dict(header, kind="link", link=link), b""
            elif stat.S_ISDIR(status.st_mode):
                yield dict(header, kind="folder"), b""
                if self.tree:
                    yield from self._folder(folder, name, path, depth)
            elif stat.S_ISREG(status.st_mode):
                yield from self._file(folder, name, dict(header, kind="file"))
            else:
                yield header, b""
        except (FileNotFoundError, NotADirectoryError):  # a command has replaced it meanwhile
            return

    def _folder(self, folder: int, name: str, path: str, depth: int) -> AnswerFrames:
        fd = os.open(name, _LISTED, dir_fd=folder)
        try:
            for below in names_in(fd, self.entries):
                yield from self.entry(fd, below, os.path.join(path, below), depth + 1)
        finally:
            os.close(fd)

    def _file(self, folder: int, name: str, header: dict[str, Any]) -> AnswerFrames:
        fd = os.open(name, _READ, dir_fd=folder)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_dev == self.kernel:
                raise Refused(f"{header['path']!r} changed while it was read")
            size = 1
            while size:
                if self.room < 0 or status.st_size > self.bytes:
                    raise Refused(f"the files are larger than {self.bytes} bytes")
                data = os.read(fd, min(CHUNK, self.room + 1))
                size = len(data)
                self.room -= size
                if self.room >= 0 and (size or header):
                    yield header, data
                header = {}
        finally:
            os.close(fd)


def described(
    folder: int, name: str, path: str, names: tuple[dict[int, str], dict[int, str]]
) -> dict[str, Any]:
    """Returns a description of the entry `name` of the folder with the file descriptor `folder`: a dict with
    the fields of `FileInfo`. An empty `name` means the folder itself. For a link, `kind` is that of the
    link's target, but size, mode, owner and time are those of the link itself.

    `path` is the entry's path in the description. `names` are the user and group names as `accounts.names`
    returns them.
    """
    name = name or "."
    status = target = os.stat(name, dir_fd=folder, follow_symlinks=False)
    link = ""
    if stat.S_ISLNK(status.st_mode):
        link = os.readlink(name, dir_fd=folder)
        try:
            target = os.stat(name, dir_fd=folder)
        except OSError:
            target = status  # the link leads nowhere
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "folder"}
    users, groups = names
    return {
        "path": path,
        "kind": kinds.get(stat.S_IFMT(target.st_mode), "other"),
        "size": status.st_size,
        "mode": stat.S_IMODE(status.st_mode),
        "uid": status.st_uid,
        "gid": status.st_gid,
        "owner": users.get(status.st_uid, str(status.st_uid)),
        "group": groups.get(status.st_gid, str(status.st_gid)),
        "modified": status.st_mtime,
        "link": link,
    }


def removed(folder: int, name: str, depth: int = 0) -> Any:
    """Removes the entry `name` of the folder with the file descriptor `folder`, and everything below it. A
    generator: yields None after each removal, so that the caller can do other work. Links are removed, not
    followed. `depth` is the number of folders between the entry of the first call and this entry; raises
    Refused if a folder is deeper than `MAX_DEPTH`."""
    mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    if stat.S_ISDIR(mode):
        if depth > MAX_DEPTH:
            raise Refused("it is too deep")
        fd = os.open(name, _LISTED, dir_fd=folder)
        try:
            for below in os.listdir(fd):
                yield from removed(fd, below, depth + 1)
        finally:
            os.close(fd)
        os.rmdir(name, dir_fd=folder)
    else:
        os.unlink(name, dir_fd=folder)
    yield None
