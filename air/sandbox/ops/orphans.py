"""Finds boxes, processes and file locks whose owner, the air process that created them, is dead. Removes such
boxes.

A running box ends with its owner, because the stream between the two closes. `collect` removes what may still
remain: containers that never started or that have expired, and the folders of process boxes (boxes without a
container). `processes` and `locks` only search, and remove nothing. A process belongs to air if its
environment contains the variable `ownership.OWNER_ENV`, or if it runs in a process box: as air's program
there (the guest) or as a command. Processes of other users and of other pid namespaces are ignored.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from air.errors import BoxDiedError, MissingError
from air.sandbox.contract import ownership
from air.sandbox.guest.running_commands import MARK
from air.sandbox.ops import command_log
from air.sandbox.wire.connection import interpreter

_MOST_BYTES = 8 << 20
"""Maximum number of bytes that are read of a process's environment or command line. The kernel starts no
process with more, but a process can declare gigabytes of its memory to be its environment."""


def collect() -> list[str]:
    """Removes what boxes of dead processes left behind: containers of air that have expired or whose owner
    process is dead, and folders of process boxes (boxes without a container) whose owner process is dead.
    Also removes the oldest command logs. Blocks.

    Returns the names of the removed containers and the paths of the removed folders. If no container engine
    answers, containers are not removed. Raises BoxStartError if the container engine answers but fails.
    """
    from air.sandbox.docker import engine

    removed = collect_folders()
    command_log.collect()
    try:
        return removed + engine.remove_left_behind()
    except MissingError:
        return removed


def collect_folders() -> list[str]:
    """Removes the folders of process boxes (boxes without a container) whose owner process is dead. Returns
    the removed paths."""
    removed = []
    for folder, label in ownership.box_folders():
        if ownership.is_dead(label):
            with suppress(BoxDiedError):  # it may be another user's
                ownership.remove_folder(folder)
                removed.append(str(folder))
    return removed


@dataclass(frozen=True)
class OrphanProcess:
    """A process that still runs although its owner, the air process that started it, is dead."""

    pid: int
    command: str
    """The command line of the process, at most its first 80 characters."""
    owner: str
    """The dead owner, as `host:pid:start`; see `ownership.owner`."""


def processes() -> list[OrphanProcess]:
    """Returns the processes that still run although the air process that started them is dead."""
    orphans = []
    for entry in _processes():
        try:
            owner = _owner(entry)
            command = _words(entry / "cmdline")
        except OSError:  # it has ended, or is another user's
            continue
        if owner and ownership.is_dead(owner):
            orphans.append(OrphanProcess(int(entry.name), " ".join(command)[:80], owner))
    return orphans


def _processes() -> Iterator[Path]:
    """Yields the folders in `/proc` of all processes in this pid namespace except this process."""
    namespace = Path("/proc/self/ns/pid").readlink()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if entry.name != str(os.getpid()) and (entry / "ns" / "pid").readlink() == namespace:
                yield entry
        except OSError:  # it has ended, or is another user's
            continue


def _owner(entry: Path) -> str:
    """Returns the label `host:pid:start` of the air process that owns a process: that started it, or that
    started its box. `entry` is the process's folder in `/proc`. Returns "" if the process does not belong to
    air."""
    variables = dict(word.partition("=")[::2] for word in _words(entry / "environ"))
    if owner := variables.get(ownership.OWNER_ENV):
        return owner
    if MARK in variables:
        return _box_owner(variables.get("HOME", ""))
    bootstrap = interpreter("")[1:-1]
    if _words(entry / "cmdline")[1 : len(bootstrap) + 1] == bootstrap:
        return _box_owner(str((entry / "cwd").readlink()))
    return ""


def _box_owner(path: str) -> str:
    """Returns the label (`host:pid:start`) of the air process that started a process box (a box without a
    container). `path` is the box's folder or a path in it. Returns "" if `path` is not in the folder of a
    process box."""
    owners = (ownership.folder_owner(part) for part in Path(path).parts)
    return next((owner for owner in owners if owner), "")


def _words(file: Path) -> list[str]:
    with file.open("rb", buffering=0) as opened:
        content = opened.read(_MOST_BYTES)
    return content.decode("utf-8", "replace").rstrip("\0").split("\0")


@dataclass(frozen=True)
class HeldLock:
    """A file lock (flock) that a process on this machine holds. `file` is the absolute path of the locked
    file."""

    file: str
    pid: int
    """The id of a process that has the locked file open."""
    orphaned: bool
    """Whether the process that took the lock is dead. Then a child process that inherited the open file still
    holds the lock."""


def locks(*folders: Path) -> list[HeldLock]:
    """Returns the file locks that processes of this user hold on files below `folders`, sorted by file."""
    roots = [str(folder.resolve()) + "/" for folder in folders]
    rows = []
    for entry in _processes():
        try:
            descriptors = list((entry / "fd").iterdir())
        except OSError:  # it has ended, or is another user's
            continue
        for descriptor in descriptors:
            try:
                file = str(descriptor.readlink())
                if not file.startswith(tuple(roots)):
                    continue
                info = (entry / "fdinfo" / descriptor.name).read_text()
            except OSError:
                continue
            if lock := re.search(r"^lock:.*\bFLOCK\b.* (-?\d+) \S+:\d+ ", info, re.MULTILINE):
                locker, pid = int(lock[1]), int(entry.name)
                dead = locker != pid and not Path(f"/proc/{locker}").exists()
                rows.append(HeldLock(file, pid, dead or locker <= 0))
    return sorted(rows, key=lambda lock: (lock.file, lock.pid))
