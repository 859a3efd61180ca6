"""The helper program `files`, which the server starts in the box (container) of each sandbox: it reads,
writes, lists and watches files there. It runs as root.

The server sends requests on standard input and gets answers on standard output, both as frames (see
`programs.frames`). A change in a watched folder is sent as a frame with the key `watch`. Standard library
only, Python >= 3.8, and no import of `air` except the modules beside this file.
"""

# Neither pathlib nor contextlib is worth its import at the start of a sandbox.
from __future__ import annotations

import errno
import os
import pwd
import select
import shutil
import stat

from air.serve.e2b.programs.entries import META, entry
from air.serve.e2b.programs.frames import Refused, receive, send
from air.serve.e2b.programs.paths import absolute
from air.serve.e2b.programs.watches import Watches

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PIECE = 1 << 20
MOST_ENTRIES = 100_000
MOST_OPEN = 256


class User:
    """The user account of the sandbox for which an operation is done. The constructor raises Refused if there
    is no account called `name`."""

    def __init__(self, name: str) -> None:
        try:
            entry = self._default() if name == "user" else pwd.getpwnam(name)
        except KeyError:
            text = f"error looking up user {name!r}: user: unknown user {name}"
            raise Refused("unauthenticated", text) from None
        self.uid, self.gid, self.home = entry.pw_uid, entry.pw_gid, entry.pw_dir

    @staticmethod
    def _default() -> pwd.struct_passwd:
        """Returns the entry in `/etc/passwd` for the default account `user`. If the image has no such
        account, returns that of the account with the user id 1000; if there is none either, that of root."""
        names = [entry.pw_name for entry in pwd.getpwall() if entry.pw_uid == 1000]
        for name in ("user", *names):
            try:
                return pwd.getpwnam(name)
            except KeyError:
                continue
        return pwd.getpwnam("root")

    def path(self, path: str) -> str:
        """Converts `path` to an absolute path (see `absolute`). Raises Refused if `path` contains a NUL
        byte."""
        if "\0" in path:
            raise Refused("invalid_argument", "the path holds a NUL byte")
        return absolute(path, self.home)

    def own(self, path: str) -> None:
        """Makes this user the owner of a file or folder."""
        os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def make_folders(self, path: str) -> None:
        """Creates the folder `path` and its missing parent folders. This user becomes the owner of the new
        folders."""
        missing = []
        while not os.path.lexists(path):
            missing.append(path)
            path = os.path.dirname(path)
        if not os.path.isdir(path):
            raise Refused("invalid_argument", f"path is not a directory: {path}")
        for folder in reversed(missing):
            os.mkdir(folder, 0o755)
            self.own(folder)


def as_code(error: OSError) -> Refused:
    """Converts the error of a failed system call to a Refused error, whose `code` is the corresponding error
    code of the Connect protocol (remote calls over HTTP), such as `not_found`."""
    codes = {
        errno.ENOENT: "not_found",
        errno.ENOTDIR: "invalid_argument",
        errno.EISDIR: "invalid_argument",
        errno.EEXIST: "already_exists",
        errno.EACCES: "permission_denied",
        errno.EPERM: "permission_denied",
        errno.EROFS: "permission_denied",
        errno.ENOSPC: "resource_exhausted",
        errno.EDQUOT: "resource_exhausted",
        errno.ELOOP: "invalid_argument",
        errno.ENAMETOOLONG: "invalid_argument",
    }
    text = f"{error.strerror}: {error.filename}" if error.filename else str(error.strerror)
    return Refused(codes.get(error.errno or 0, "internal"), text)


class Operations:
    """The operations of the helper program `files`, such as reading a file. There is one method for each
    value of the field `op` of a request. It gets the fields (`header`) and the bytes of the request, and
    returns the fields of the answer."""

    def __init__(self) -> None:
        self.open: dict[int, int] = {}
        self.watches = Watches()

    def stat(self, header: dict[str, Any], _: bytes) -> dict[str, Any]:
        return {"entry": entry(User(header["user"]).path(header["path"]))}

    def entries(self, header: dict[str, Any], _: bytes) -> dict[str, Any]:
        path = User(header["user"]).path(header["path"])
        if not os.path.isdir(path):
            os.stat(path)
            raise Refused("invalid_argument", f"path is not a directory: {path}")
        entries: list[dict[str, Any]] = []
        self._walk(path, header["depth"], entries)
        return {"entries": entries}

    def _walk(self, folder: str, depth: int, entries: list[dict[str, Any]]) -> None:
        for name in sorted(os.listdir(folder)):
            path = os.path.join(folder, name)
            try:
                entries.append(entry(path))
            except FileNotFoundError:  # removed meanwhile
                continue
            if len(entries) > MOST_ENTRIES:
                raise Refused("resource_exhausted", f"more than {MOST_ENTRIES} entries")
            if depth > 1 and os.path.isdir(path) and not os.path.islink(path):
                self._walk(path, depth - 1, entries)

    def mkdir(self, header: dict[str, Any], _: bytes) -> dict[str, Any]:
        user = User(header["user"])
        path = user.path(header["path"])
        if os.path.isdir(path):
            raise Refused("already_exists", f"directory already exists: {path}")
        user.make_folders(path)
        return {"entry": entry(path)}

    def move(self, header: dict[str, Any], _: bytes) -> dict[str, Any]:
        user = User(header["user"])
        source, target = user.path(header["source"]), user.path(header["destination"])
        os.lstat(source)
        user.make_folders(os.path.dirname(target))
        try:
            os.rename(source, target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            shutil.move(source, target)
        return {"entry": entry(target)}

    def remove(self, header: dict[str, Any], _: bytes) -> dict[str, Any]:
        path = User(header["user"]).path(header["path"])
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        elif os.path.lexists(path):
            os.remove(path)
        return {}

    def read(self, header: dict[str, Any], _: bytes) -> dict[str, Any]:
        """Opens a file for reading, and returns its path and its size in bytes. The size is -1 if the system
        reports 0, as for files in /proc. Further requests with the operation `piece` read the file; their
        field `handle` is the `id` of this request. The second argument is not used; all operations have
        it."""
        path = User(header["user"]).path(header["path"])
        self._bounded()
        if os.path.isdir(path):
            raise Refused("invalid_argument", f"path '{path}' is a directory")
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(fd)
            raise Refused("invalid_argument", f"path '{path}' is not a regular file")
        self.open[header["id"]] = fd
        return {"path": path, "size": status.st_size or -1}

    def piece(self, header: dict[str, Any], _: bytes) -> dict[str, Any]:
        return {"data": os.read(self._fd(header), PIECE)}

    def write(self, header: dict[str, Any], _: bytes) -> dict[str, Any]:
        """Opens a file for writing: creates it, with missing parent folders, or empties it; returns its path.
        Further requests with the operation `add` write to the file; their field `handle` is the `id` of this
        request. The second argument is not used; all operations have it."""
        user = User(header["user"])
        path = user.path(header["path"])
        self._bounded()
        if os.path.isdir(path):
            raise Refused("invalid_argument", f"path '{path}' is a directory")
        user.make_folders(os.path.dirname(path))
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        fd = os.open(path, flags, 0o644)
        self.open[header["id"]] = fd
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            self.close({"handle": header["id"]}, b"")
            raise Refused("invalid_argument", f"path '{path}' is not a regular file")
        os.fchown(fd, user.uid, user.gid)
        for name in os.listxattr(fd):
            if name.startswith(META):
                os.removexattr(fd, name)
        for key, value in header["metadata"].items():
            os.setxattr(fd, META + key, value.encode())
        return {"path": path}

    def add(self, header: dict[str, Any], body: bytes) -> dict[str, Any]:
        fd, view = self._fd(header), memoryview(body)
        while view:
            view = view[os.write(fd, view) :]
        return {}

    def close(self, header: dict[str, Any], _: bytes) -> dict[str, Any]:
        fd = self.open.pop(header["handle"], None)
        if fd is not None:
            os.close(fd)
        return {}

    def watch(self, header: dict[str, Any], _: bytes) -> dict[str, Any]:
        path = User(header["user"]).path(header["path"])
        if not os.path.isdir(path):
            os.stat(path)
            raise Refused("invalid_argument", f"path {path} not a directory")
        self.watches.add(header["id"], path, header["recursive"], header["include_entry"])
        return {}

    def unwatch(self, header: dict[str, Any], _: bytes) -> dict[str, Any]:
        self.watches.drop(header["handle"])
        return {}

    def usage(self, header: dict[str, Any], _: bytes) -> dict[str, Any]:
        """Returns what the box uses at present: `memory`, `cache` (page cache), `disk` and `disk_total` of
        the root folder in bytes, and `cpu`, the CPU time since the box started, in microseconds. The
        arguments are not used; all operations have them."""
        disk = os.statvfs("/")
        used = (disk.f_blocks - disk.f_bfree) * disk.f_frsize
        return {
            **control_group(),
            "disk": used,
            "disk_total": disk.f_blocks * disk.f_frsize,
        }

    def _fd(self, header: dict[str, Any]) -> int:
        fd = self.open.get(header["handle"])
        if fd is None:
            raise Refused("internal", "no such open file")
        return fd

    def _bounded(self) -> None:
        if len(self.open) >= MOST_OPEN:
            raise Refused("resource_exhausted", "too many files are being read or written at once")


def control_group() -> dict[str, int]:
    """Reads the box's Linux control group (version 2 or 1). Returns `memory` and `cache` (page cache) in
    bytes, and `cpu`, the used CPU time in microseconds."""
    root = "/sys/fs/cgroup"
    if os.path.exists(f"{root}/cgroup.controllers"):
        return {
            "memory": number_in(f"{root}/memory.current", ""),
            "cache": number_in(f"{root}/memory.stat", "file"),
            "cpu": number_in(f"{root}/cpu.stat", "usage_usec"),
        }
    return {
        "memory": number_in(f"{root}/memory/memory.usage_in_bytes", ""),
        "cache": number_in(f"{root}/memory/memory.stat", "cache"),
        "cpu": number_in(f"{root}/cpuacct/cpuacct.usage", "") // 1000,
    }


def number_in(path: str, key: str) -> int:
    """Reads a number from `path`, a file of the Linux control group. It is the last word of the line that
    begins with the word `key`, or of the first line if `key` is empty. Returns 0 if there is no such line."""
    with open(path) as file:
        for line in file:
            words = line.split()
            if not key or words[0] == key:
                return int(words[-1])
    return 0


def serve(operations: Operations) -> None:
    """Reads one request from standard input, calls the method of `operations` that the request's field `op`
    names, and writes the answer to standard output. If the method fails, the answer has the error."""
    header, body = receive()
    answer: dict[str, Any] = {}
    data = b""
    try:
        answer = getattr(operations, header["op"])(header, body)
        data = answer.pop("data", b"")
    except Refused as error:
        answer = {"code": error.code, "message": str(error)}
    except OSError as error:
        refusal = as_code(error)
        answer = {"code": refusal.code, "message": str(refusal)}
    except RecursionError:
        answer = {"code": "invalid_argument", "message": "the folders are nested too deeply"}
    send({**answer, "id": header["id"]}, data)


def main() -> None:
    """Runs the helper program: handles requests, and reports changes in watched folders, until standard input
    ends."""
    os.umask(0o022)
    operations = Operations()
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(operations.watches.fd, select.POLLIN)
    try:
        while True:
            for fd, _ in poll.poll():
                if fd == 0:
                    serve(operations)
                else:
                    for ident, event in operations.watches.events():
                        send({"watch": ident, "event": event})
    except (EOFError, BrokenPipeError):
        return
