"""Handles the requests that read and write files. Part of the guest, air's program in a box. Only regular
files and folders are opened, and no link is followed.

A root is a writable folder of the box. The guest opens a path component by component, starting from a file
descriptor of a root. So the path never leads out of the root, even if a command changes folders meanwhile. In
an open box, however, every path is allowed and links are followed, with the rights of the user whom a request
names. Standard library only, Python >= 3.8, no import of `air`.
"""

# ruff: noqa: PTH103, PTH116, PTH118, SIM105
# Neither pathlib nor contextlib is worth its import at every start of a box.
from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from typing import Any

    AnswerFrames = Generator[tuple[dict[str, Any], bytes], None, None]
else:
    AnswerFrames = None

CHUNK = 1 << 18
MAX_ENTRIES = 50_000
MAX_DEPTH = 100
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ROOT = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_PLACE = os.O_PATH | os.O_CLOEXEC
_OPENED = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Refused(Exception):
    """The error that the guest (air's program in a box) raises if it refuses a request of the host. The
    error's text is sent to the host as the answer."""


class FileRefused(Exception):
    """The error that is raised if a file that comes with a command cannot be written: `path` is the file's
    path, and `cause` the reason."""

    def __init__(self, path: str, cause: OSError | Refused) -> None:
        super().__init__(path)
        self.path = path
        self.cause = cause


def names_in(folder: int, most: int) -> list[str]:
    """Returns the sorted names of the entries of the folder with the file descriptor `folder`. Raises Refused
    if there are more than `most`: the names of a million files need much memory."""
    names: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if len(names) >= most:
                raise Refused("it holds too many files")
            names.append(entry.name)
    return sorted(names)


class Upload:
    """A file that the guest (this program) is writing, under a temporary name until it is complete.

    `folder` is a file descriptor of the file's folder, which the upload closes at its end. `name` and `mode`
    are the file's final name and permission bits.
    """

    def __init__(self, folder: int, name: str, mode: int) -> None:
        self.folder = folder
        self.name = name
        self.mode = mode
        self.temporary = f".air-{os.urandom(8).hex()}"
        try:
            self.fd = os.open(self.temporary, _NEW, 0o600, dir_fd=folder)
        except OSError:
            os.close(folder)
            raise

    def add(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self.fd, view) :]

    def commit(self) -> None:
        """Gives the temporary file its final name and mode. Replaces an existing file or link that has this
        name."""
        os.fchmod(self.fd, self.mode)
        os.rename(self.temporary, self.name, src_dir_fd=self.folder, dst_dir_fd=self.folder)
        os.close(self.fd)
        os.close(self.folder)

    def abandon(self) -> None:
        """Cancels the upload and removes its temporary file."""
        try:
            os.unlink(self.temporary, dir_fd=self.folder)
        except FileNotFoundError:
            pass
        os.close(self.fd)
        os.close(self.folder)


def holds(folder: str, path: str) -> bool:
    """Whether `path` is `folder` or lies below it. Both are absolute paths, which are compared as strings
    only: links and `..` are not resolved."""
    return path == folder or path.startswith(folder + "/")


def deepest(folders: Iterable[str], path: str) -> str | None:
    """Returns the innermost of the `folders` that is `path` or contains it; None if there is no such folder.
    All are absolute paths, which are compared as strings only: links and `..` are not resolved."""
    return max((folder for folder in folders if holds(folder, path)), key=len, default=None)


class Files:
    """Reads and writes files in a box's root folders (the folders that the box may write). Each root is a
    pair: the path that requests use for the folder, and the path at which the folder lies in the box.
    Relative paths start at the first root."""

    follows = False
    """Whether links are followed. True only in an open box."""
    kernel = -1
    """The device number of the file system /proc, whose files the guest (this program) refuses to open. -1 if
    no allowed path leads to /proc."""

    def __init__(self, roots: list[tuple[str, str]]) -> None:
        self.roots = [(named, seen, os.open(seen, _ROOT)) for named, seen in roots]
        self.uploads: dict[int, Upload | None] = {}

    def reopen(self, *_frame: object) -> dict[str, Any]:
        """Opens the roots (the box's writable folders) again. Needed after the host has mounted a file system
        over a root, such as a copy of a snapshot. Returns an empty answer; the request's frame is ignored."""
        for _, _, fd in self.roots:
            os.close(fd)
        self.roots = [(named, seen, os.open(seen, _ROOT)) for named, seen, _ in self.roots]
        return {}

    def write(self, header: dict[str, Any], data: bytes) -> dict[str, Any] | None:
        """Writes `data`, one piece of a file that the host sends in several `write` requests. Returns an
        empty dict, the answer, after the last piece; None after other pieces.

        The headers of all pieces of a file have the same `id`. The header of the first piece contains the
        `path` and the `mode`; the header of the last piece has a true `last`. If writing fails, raises
        OSError or Refused once; the remaining pieces of the file are then ignored and get no answer.
        """
        ident = header["id"]
        try:
            if ident not in self.uploads:
                self.uploads[ident] = self._begin(header)
            upload = self.uploads[ident]
            if upload is not None:
                upload.add(data)
                if header["last"]:
                    upload.commit()
                    return {}
        except (OSError, Refused):
            self.abort(ident)
            self.uploads[ident] = None
            raise
        finally:
            if header["last"]:
                self.uploads.pop(ident, None)
        return None

    def write_before_command(self, header: dict[str, Any], body: bytes) -> bytes:
        """Writes the files that come with a command. `header["files"]` lists them as pairs (path, size in
        bytes). `body` begins with their contents, one after another. Returns the rest of `body`, which is the
        command's standard input. Raises FileRefused if a file cannot be written."""
        start = 0
        for path, size in header.get("files", ()):
            one = {"id": header["id"], "path": path, "mode": 0o644, "last": True}
            try:
                self.write(one, body[start : start + size])
            except (OSError, Refused) as error:
                raise FileRefused(path, error) from error
            start += size
        return body[start:]

    def abort(self, ident: int) -> None:
        """Cancels the unfinished `write` request with the id `ident`, if there is one, and removes its
        temporary file."""
        upload = self.uploads.pop(ident, None)
        if upload is not None:
            upload.abandon()

    def _begin(self, header: dict[str, Any]) -> Upload:
        root, parts = self._resolve(header["path"])
        if header.get("into") and self._is_folder(root, parts):
            parts = [*parts, header["into"]]
        if not parts:
            raise Refused("it is a folder")
        folder = self._walk(root, parts[:-1], make=True)
        return Upload(folder, parts[-1], header["mode"])

    def mkdir(self, header: dict[str, Any], _: bytes) -> dict[str, Any]:
        """Makes the folder `header["path"]` and its missing parent folders. Does nothing if the folder
        exists. Returns an empty answer. The request's body is ignored."""
        root, parts = self._resolve(header["path"])
        os.close(self._walk(root, parts, make=True))
        return {}

    def get(self, header: dict[str, Any]) -> AnswerFrames:
        """Yields the contents of the file `header["path"]` or, if `header["tree"]` is true, of a folder with
        everything in it. Each yielded piece is a pair (header, bytes).

        A header with the key `entry` starts the next file; the value is the file's path relative to the
        requested path. If the header also has the key `folder`, the entry is a folder. An empty header means
        that the bytes continue the previous file. `header["max_bytes"]` limits the total size of all files.
        """
        root, parts = self._resolve(header["path"])
        room, pending, count = header["max_bytes"], [("", parts)], 0
        while pending:
            entry, parts = pending.pop()
            count += 1
            if count > MAX_ENTRIES or len(parts) > MAX_DEPTH:
                raise Refused("it holds too many files or is too deep")
            fd, is_folder = self._open(root, parts, entry)
            try:
                if is_folder:
                    if not header.get("tree"):
                        raise Refused("it is a folder, not a regular file")
                    yield {"entry": entry, "folder": True}, b""
                    for name in reversed(names_in(fd, MAX_ENTRIES - count - len(pending))):
                        pending.append((entry + "/" + name if entry else name, [*parts, name]))
                    continue
                mode = os.fstat(fd).st_mode & 0o777
                data, first = os.read(fd, min(CHUNK, room + 1)), True
                while data or first:
                    room -= len(data)
                    if room < 0 or os.fstat(fd).st_size > header["max_bytes"]:
                        raise Refused(f"it is larger than {header['max_bytes']} bytes")
                    yield ({"entry": entry, "mode": mode} if first else {}), data
                    data, first = os.read(fd, min(CHUNK, room + 1)), False
            finally:
                os.close(fd)

    def parent(self, path: str, make: bool = False) -> tuple[int, str]:
        """Returns a pair: a file descriptor of the folder that contains the entry `path`, and the entry's
        name in this folder.

        The name is empty if `path` is itself a root (a writable folder of the box); the descriptor is then
        that of the root. With `make`, missing folders are created.
        """
        root, parts = self._resolve(path)
        return self._walk(root, parts[:-1], make=make), parts[-1] if parts else ""

    def _resolve(self, path: str) -> tuple[int, list[str]]:
        """Returns a pair: a file descriptor of the root (writable folder of the box) that contains `path`,
        and the path's components below this root. Raises Refused if no root contains `path`."""
        if "\0" in path:
            raise Refused("the path holds a NUL byte")
        path = os.path.normpath(os.path.join(self.roots[0][0], path))
        roots = {prefix: fd for named, seen, fd in self.roots[::-1] for prefix in (seen, named)}
        root = deepest(roots, path)
        if root is None:
            raise Refused("the path leads out of the box's writable folders")
        return roots[root], [part for part in path[len(root) :].split("/") if part]

    def _walk(self, root: int, parts: list[str], make: bool = False) -> int:
        """Opens the folder at `parts`, a list of path components, starting from the file descriptor `root`.
        Returns the opened folder's file descriptor. With `make`, missing folders are created. Raises Refused
        if a component is a link or a file."""
        fd = os.open(".", _FOLDER, dir_fd=root)
        for part in parts:
            try:
                if make:
                    try:
                        os.mkdir(part, 0o755, dir_fd=fd)
                    except FileExistsError:
                        pass
                deeper = os.open(part, _FOLDER, dir_fd=fd)
            except NotADirectoryError:
                raise Refused(f"{part!r} is a link or a file, not a folder") from None
            finally:
                os.close(fd)
            fd = deeper
        return fd

    def _is_folder(self, root: int, parts: list[str]) -> bool:
        try:
            os.close(self._walk(root, parts))
        except (FileNotFoundError, Refused):
            return False
        return True

    def _open(self, root: int, parts: list[str], entry: str) -> tuple[int, bool]:
        """Opens the file or folder at `parts`, a list of path components below the descriptor `root`. Returns
        its file descriptor, and whether it is a folder. `entry` is its name in error messages."""
        what = repr(entry) if entry else "it"
        folder = self._walk(root, parts[:-1])
        try:
            name = parts[-1] if parts else "."
            mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
            if stat.S_ISLNK(mode):
                raise Refused(f"{what} is a link")
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise Refused(f"{what} is not a regular file")
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            fd = os.open(name, flags, dir_fd=folder)
        finally:
            os.close(folder)
        kind = os.fstat(fd).st_mode
        if stat.S_IFMT(kind) != stat.S_IFMT(mode):
            os.close(fd)
            raise Refused(f"{what} changed while it was read")
        return fd, stat.S_ISDIR(kind)


class OpenFiles(Files):
    """Reads and writes files at any path of an open box (a container that its commands may use as a whole).
    Relative paths start at the workspace, which is the first root.

    The kernel follows links and checks rights, as it does for commands. The guest (this program) opens no
    file of /proc, because its own memory and streams are files there.
    """

    follows = True

    def __init__(self, roots: list[tuple[str, str]]) -> None:
        super().__init__(roots[:1])
        self.kernel = os.stat("/proc").st_dev

    def _resolve(self, path: str) -> tuple[int, list[str]]:
        if "\0" in path:
            raise Refused("the path holds a NUL byte")
        path = os.path.join(
            self.roots[0][1], path
        )  # not normalised, because only the kernel can resolve `link/..`
        return self.roots[0][2], [part for part in path.split("/") if part]

    def _walk(self, root: int, parts: list[str], make: bool = False) -> int:
        path = "/" + "/".join(parts)
        if make:
            os.makedirs(path, 0o755, exist_ok=True)
        return self._checked(os.open(path, _PLACE | os.O_DIRECTORY))

    def _checked(self, fd: int) -> int:
        if os.fstat(fd).st_dev == self.kernel:
            os.close(fd)
            raise Refused("the files of /proc are for commands only")
        return fd

    def _begin(self, header: dict[str, Any]) -> Any:
        path = os.path.realpath(os.path.join(self.roots[0][1], header["path"]))
        try:  # an existing file keeps its mode, as it does for a command that writes to it
            status = os.stat(path)
            if stat.S_ISREG(status.st_mode):
                header = dict(header, mode=stat.S_IMODE(status.st_mode))
        except FileNotFoundError:
            pass
        return super()._begin(dict(header, path=path))

    def _open(self, root: int, parts: list[str], entry: str) -> tuple[int, bool]:
        place = self._checked(os.open("/" + "/".join(parts), _PLACE))
        try:
            mode = os.fstat(place).st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise Refused(
                    f"{entry!r} is not a regular file" if entry else "it is not a regular file"
                )
            return os.open(f"/proc/self/fd/{place}", _OPENED), stat.S_ISDIR(mode)
        finally:
            os.close(place)
