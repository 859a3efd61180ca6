"""Finds orphans: processes and file locks that outlived the air process that started them.

This module only reads: it ends and removes nothing. A process counts as a process of air only in two cases:
`ownership.OWNER_ENV` is in its environment; or it is the guest or a command of a process box (a box that is
a plain process, not a container), and its folder belongs to such a box. A process's name proves nothing.
Processes of other users, and of other pid namespaces (containers), cannot be read and are left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from air.sandbox.contract import ownership
from air.sandbox.guest.processes import MARK
from air.sandbox.wire.connection import interpreter


@dataclass(frozen=True)
class Process:
    """An orphan: a process of air whose owner, the air process that started it, is dead."""

    pid: int
    command: str
    """The command line of the process, shortened."""
    owner: str
    """The dead owner, as `host:pid:start`; see `ownership.owner`."""


def processes() -> list[Process]:
    """Returns the processes of air whose owner, the air process that started them, is dead."""
    orphans = []
    for entry in _processes():
        try:
            owner = _owner(entry)
            command = _words(entry / "cmdline")
        except OSError:  # it has ended, or is another user's
            continue
        if owner and ownership.is_dead(owner):
            orphans.append(Process(int(entry.name), " ".join(command)[:80], owner))
    return orphans


def _processes() -> Iterator[Path]:
    """Yields the `/proc` folders of all processes in this pid namespace, except this process."""
    here = Path("/proc/self/ns/pid").readlink()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if entry.name != str(os.getpid()) and (entry / "ns" / "pid").readlink() == here:
                yield entry
        except OSError:  # it has ended, or is another user's
            continue


def _owner(entry: Path) -> str:
    """Returns the air process that started the process with the `/proc` folder `entry`, by air's marks on it.

    The owner is returned as `host:pid:start`; it is empty if the process has no such mark.
    """
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
    """Returns the owner (`host:pid:start`) of the process box whose folder contains `path`.

    Returns an empty string if `path` lies in no such folder.
    """
    owners = (ownership.folder_owner(part) for part in Path(path).parts)
    return next((owner for owner in owners if owner), "")


def _words(file: Path) -> list[str]:
    return file.read_bytes().decode("utf-8", "replace").rstrip("\0").split("\0")


@dataclass(frozen=True)
class Lock:
    """A file lock (flock) that some process holds."""

    file: str
    pid: int
    """The id of a process that has the locked file open."""
    orphaned: bool
    """Whether the process that took the lock is dead, and a child that inherited the file keeps the lock."""


def locks(*folders: Path) -> list[Lock]:
    """Returns the locks on files below `folders` that processes of this user hold.

    A lock ends with the last process that has inherited the open file, so a child that outlives the
    process that took the lock may still hold it.
    """
    roots = [str(folder.resolve()) + "/" for folder in folders]
    held = []
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
                held.append(Lock(file, pid, dead or locker <= 0))
    return sorted(held, key=lambda lock: (lock.file, lock.pid))
