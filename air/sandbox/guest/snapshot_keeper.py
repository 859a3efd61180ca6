"""The keeper: the program of the container (a helper container, without an agent) that stores frozen
workspaces of boxes and mounts copies of them into other boxes.

The keeper runs as root in its own mount namespace. It finds a box's mount namespace by a process id, and
enters that namespace to mount there. A frozen workspace is the tmpfs (file system in memory) of its box. This
tmpfs outlives the box because the keeper has mounted it, too. A fork (a writable copy in another box) is an
overlay file system whose upper layer is a new tmpfs, so no file is copied. All mounts end with the keeper.
The keeper ends when standard input closes or is silent for `SILENCE_SECONDS`. Standard library only, Python
>= 3.8.
"""

# ruff: noqa: PTH101, PTH102, PTH106, PTH116
# The Python of the image may lack newer modules; and each import would slow down the start.
from __future__ import annotations

import contextlib
import ctypes
import os

from air.sandbox.guest import frames

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

MOST_LAYERS = 120
"""Maximum number of layers of an overlay file system. Each box that starts from a snapshot adds a layer to
those of the snapshot. The paths of all layers must fit into one memory page of the kernel."""
SILENCE_SECONDS = 300.0
HOME = "/k"
"""The folder that contains the mounts of the keeper (this program, which stores snapshots). Its path is short
so that the paths of `MOST_LAYERS` layers of an overlay file system fit into one memory page."""
_OPEN_TREE, _MOVE_MOUNT = 428, 429  # the same number on every architecture
_OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH = 1, 4
_AT_FDCWD = -100
_CLONE_NEWNS = 0x20000
_MS_NOSUID, _MS_NODEV, _MNT_DETACH = 2, 4, 2
_FLAGS = _MS_NOSUID | _MS_NODEV
_ENGINES_FILES = ("/etc/hostname", "/etc/hosts", "/etc/resolv.conf")
_LIBC = ctypes.CDLL(None, use_errno=True)


def _called(doing: str, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, "%s: %s" % (doing, os.strerror(number)))  # noqa: UP031
    return result


def _mount(kind: str, target: str, flags: int, options: str) -> None:
    arguments = (kind.encode(), target.encode(), kind.encode(), flags, options.encode())
    _called(f"mounting {kind}", _LIBC.mount(*arguments))


def _unmount(target: str) -> None:
    _called("unmounting", _LIBC.umount2(target.encode(), _MNT_DETACH))


def _clone(path: str) -> int:
    """Clones the mount at `path`. Returns a file descriptor of the clone, which is not attached to any path
    yet."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC
    return _called("open_tree", _LIBC.syscall(_OPEN_TREE, _AT_FDCWD, path.encode(), flags))


def _attach(mount: int, path: str) -> None:
    arguments = (mount, b"", _AT_FDCWD, path.encode(), _MOVE_MOUNT_F_EMPTY_PATH)
    _called("move_mount", _LIBC.syscall(_MOVE_MOUNT, *arguments))


class SnapshotStore:
    """The snapshots (frozen workspaces) and forks (writable copies of snapshots in boxes) that this program,
    the keeper, stores. Snapshots and forks have names.

    `layers` maps each name to the folders that are its overlay layers, newest first. `mounts` maps each layer
    to the path of its mount.
    """

    def __init__(self) -> None:
        self.layers: dict[str, list[str]] = {}
        self.mounts: dict[str, str] = {}
        self.users: dict[str, int] = {}
        self.count = 0
        self.home = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        self.options = "userxattr,index=off" if _is_rootless() else "redirect_dir=on,index=off"

    def handle(self, header: dict[str, Any]) -> None:
        """Handles one request, which is named by `header["op"]`: `take` or `fork` (see these methods), `drop`
        (releases a snapshot or a fork) or `beat` (only shows that the sender is alive)."""
        op, name = header["op"], header.get("name", "")
        if op == "take":
            self.take(name, header)
        elif op == "fork":
            self.fork(name, header)
        elif op == "drop":
            for layer in self.layers.pop(name, []):
                self._release(layer)
        elif op != "beat":
            raise ValueError(f"unknown operation {op!r}")

    def take(self, name: str, header: dict[str, Any]) -> None:
        """Makes a snapshot called `name` of the workspace (the folder in which an agent works) of the box
        `header["box"]`. No file is copied: this program, too, mounts the workspace's file system, so that it
        outlives the box. The caller must have ended all processes in the box, because they could change the
        snapshot."""
        layers = self.layers.get(header["box"])
        if layers is None:
            place = self._place()
            with _inside(self.home, header["pid"], header["container"]):
                mount = _clone(header["path"])
            try:
                _attach(mount, place)
            finally:
                os.close(mount)
            self.mounts[place] = place
            layers = [place]
        self._hold(name, layers)

    def fork(self, name: str, header: dict[str, Any]) -> None:
        """Mounts a writable copy of the snapshot `header["of"]` over the workspace of the box `name`. All
        files that the box adds or changes in the copy may take `header["disk_mb"]` MiB together. Raises
        ValueError if the snapshot already has `MOST_LAYERS` layers."""
        below = self.layers[header["of"]]
        if len(below) >= MOST_LAYERS:
            raise ValueError(f"snapshots nest {MOST_LAYERS} deep at most")
        room = self._place()
        limits = f"size={header['disk_mb']}m,nr_inodes={header['inodes']},mode=0700"
        _mount("tmpfs", room, _FLAGS, limits)
        try:
            mount = self._overlay(room, below)
            try:
                with _inside(self.home, header["pid"], header["container"]):
                    _attach(mount, header["path"])
            finally:
                os.close(mount)
        except BaseException:  # for every error: otherwise the tmpfs would stay mounted for good
            _unmount(room)
            raise
        self.mounts[room + "/u"] = room
        self._hold(name, [room + "/u", *below])

    def _overlay(self, room: str, below: list[str]) -> int:
        """Mounts an overlay file system from the read-only layers `below` and a new writable layer in the
        folder `room`. Returns a file descriptor of the mount, which is not attached to any path yet."""
        upper, work, whole = room + "/u", room + "/w", room + "/m"
        for folder in (upper, work, whole):
            os.mkdir(folder)
        was = os.stat(below[0])
        os.chmod(upper, was.st_mode & 0o7777)
        os.chown(upper, was.st_uid, was.st_gid)
        folders = f"lowerdir={':'.join(below)},upperdir={upper},workdir={work}"
        _mount("overlay", whole, _FLAGS, folders + "," + self.options)
        try:
            return _clone(whole)
        finally:
            _unmount(whole)

    def _place(self) -> str:
        self.count += 1
        path = f"{HOME}/{self.count}"
        os.mkdir(path)
        return path

    def _hold(self, name: str, layers: list[str]) -> None:
        for layer in layers:
            self.users[layer] = self.users.get(layer, 0) + 1
        self.layers[name] = list(layers)

    def _release(self, layer: str) -> None:
        self.users[layer] -= 1
        if not self.users[layer]:
            del self.users[layer]
            mount = self.mounts.pop(layer)
            _unmount(mount)
            os.rmdir(mount)


def _is_rootless() -> bool:
    """Whether this process is root only in its user namespace, and not on the host.

    If so, overlays cannot use trusted extended attributes, and need other mount options.
    """
    with open("/proc/self/uid_map") as table:  # noqa: PTH123
        return table.read().split() != ["0", "0", "4294967295"]


@contextlib.contextmanager
def _inside(home: int, pid: int, container: str) -> Iterator[None]:
    """Context manager: moves this process into the mount namespace of the container with the id `container`,
    and back afterwards.

    `pid` is a process of the container. `home` is a file descriptor of this process's own mount namespace.
    Raises the errors of `_namespace`.
    """
    there = _namespace(pid, container)
    try:
        _called("entering the box", _LIBC.setns(there, _CLONE_NEWNS))
    finally:
        os.close(there)
    try:
        yield
    finally:
        if _LIBC.setns(home, _CLONE_NEWNS) != 0:
            os._exit(1)  # nothing may continue in a box's namespace


def _namespace(pid: int, container: str) -> int:
    """Returns a file descriptor of the mount namespace of the process `pid`.

    Raises ValueError if the process does not belong to the container with the id `container`. The mounts of
    the process show this: Docker mounts files from a folder that has the container's id in its path, and
    commands in a box cannot mount. The folder of the process in `/proc` stays open during the check, so
    another process that gets the same pid cannot be mistaken for it.
    """
    process = os.open(f"/proc/{pid}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        there = os.open("ns/mnt", os.O_RDONLY | os.O_CLOEXEC, dir_fd=process)
        try:
            with open(os.open("mountinfo", os.O_RDONLY | os.O_CLOEXEC, dir_fd=process)) as table:  # noqa: PTH123
                mounts = [line.split()[3:5] for line in table]
            if not any(
                place in _ENGINES_FILES and container in source.split("/")
                for source, place in mounts
            ):
                raise ValueError(f"process {pid} is not of the box's container")
        except BaseException:  # any error: nobody else closes the descriptor
            os.close(there)
            raise
        return there
    finally:
        os.close(process)


def main() -> None:
    """Runs the keeper, the program that stores snapshots and mounts copies of them into boxes: handles
    requests until standard input closes or is silent for `SILENCE_SECONDS`."""
    frames.receive(SILENCE_SECONDS)  # the configuration, which is empty
    store = SnapshotStore()
    frames.send({"op": "ready"})
    while True:
        header = frames.receive(SILENCE_SECONDS)
        try:
            store.handle(header)
            frames.send({"id": header["id"]})
        except (OSError, ValueError, KeyError) as error:
            text = getattr(error, "strerror", None) or repr(error)
            frames.send({"id": header["id"], "error": text})
