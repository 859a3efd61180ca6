"""Finds processes and locks that outlived their owner. It only reads: it ends and removes nothing.

A process counts as ours only by marks that our processes leave: `ownership.OWNER_ENV` in its environment,
the mark of a box's command together with the box's folder, or a guest's own command line in such a folder.
Its name proves nothing. Other users' processes cannot be read, and are left out, as are those of other
pid namespaces, containers above all.
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
    """One of our processes whose owner is dead."""

    pid: int
    command: str
    """Its command line, shortened."""
    owner: str
    """The owner's label; see `ownership.owner`."""


def processes() -> list[Process]:
    """Our processes that outlived the process that started them."""
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
    """The processes of this pid namespace, except this one."""
    here = Path("/proc/self/ns/pid").readlink()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if entry.name != str(os.getpid()) and (entry / "ns" / "pid").readlink() == here:
                yield entry
        except OSError:  # it has ended, or is another user's
            continue


def _owner(entry: Path) -> str:
    """The owner of a process, by our marks on it; empty if it has none."""
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
    """The owner of the process box whose folder contains `path`; empty if none does."""
    owners = (ownership.folder_owner(part) for part in Path(path).parts)
    return next((owner for owner in owners if owner), "")


def _words(file: Path) -> list[str]:
    return file.read_bytes().decode("utf-8", "replace").rstrip("\0").split("\0")


@dataclass(frozen=True)
class Lock:
    """A file lock that is held."""

    file: str
    pid: int
    """A process that has it open."""
    orphaned: bool
    """Whether the process that locked it is dead, and one that inherited the file keeps the lock."""


def locks(*folders: Path) -> list[Lock]:
    """The locks on files below `folders` that processes of this user hold.

    A lock ends with the last process that has the file open, so a child that outlived the locking
    process may hold it.
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
