"""Processes and locks that outlived whoever they belonged to. Only looks; ends and removes nothing.

A process counts as ours only by what one of ours gave it: `ownership.OWNER_ENV` in its environment, the
mark of a box's command together with the box's folder, or a guest's own command line in such a
folder. Its name alone says nothing. Other users' processes cannot be read, and are left out, as are
those of other pid namespaces, containers above all.
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
    """A process of ours whose owner is gone."""

    pid: int
    command: str
    """Its command line, shortened."""
    owner: str
    """The owner's label; see `ownership.owner`."""


def processes() -> list[Process]:
    """Processes that one of ours started, and that outlived it."""
    found = []
    for entry in _processes():
        try:
            owner = _owner(entry)
            command = _words(entry / "cmdline")
        except OSError:  # it has ended, or is another user's
            continue
        if owner and ownership.is_dead(owner):
            found.append(Process(int(entry.name), " ".join(command)[:80], owner))
    return found


def _processes() -> Iterator[Path]:
    """The processes of this pid namespace but ourselves."""
    here = Path("/proc/self/ns/pid").readlink()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if entry.name != str(os.getpid()) and (entry / "ns" / "pid").readlink() == here:
                yield entry
        except OSError:  # it has ended, or is another user's
            continue


def _owner(entry: Path) -> str:
    """Whose process this is, by what one of ours gave it; empty if it is nobody's of ours."""
    variables = dict(word.partition("=")[::2] for word in _words(entry / "environ"))
    if given := variables.get(ownership.OWNER_ENV):
        return given
    if MARK in variables:
        return _box_owner(variables.get("HOME", ""))
    bootstrap = interpreter("")[1:-1]
    if _words(entry / "cmdline")[1 : len(bootstrap) + 1] == bootstrap:
        return _box_owner(str((entry / "cwd").readlink()))
    return ""


def _box_owner(path: str) -> str:
    """The owner of the process box in whose folder a path lies."""
    owners = (ownership.folder_owner(part) for part in Path(path).parts)
    return next((owner for owner in owners if owner), "")


def _words(file: Path) -> list[str]:
    return file.read_bytes().decode("utf-8", "replace").rstrip("\0").split("\0")


@dataclass(frozen=True)
class Lock:
    """A file lock that is held."""

    file: str
    pid: int
    """Who has it open."""
    left: bool
    """Whether its taker is gone, and a process that merely inherited the file keeps it."""


def locks(*folders: Path) -> list[Lock]:
    """The locks that are held on files below `folders`, by processes of this user.

    A lock ends with the last process that has the file open: one whose taker is dead is held by a
    child that outlived it.
    """
    roots = [str(folder.resolve()) + "/" for folder in folders]
    found = []
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
                told = (entry / "fdinfo" / descriptor.name).read_text()
            except OSError:
                continue
            if taken := re.search(r"^lock:.*\bFLOCK\b.* (-?\d+) \S+:\d+ ", told, re.MULTILINE):
                taker, pid = int(taken[1]), int(entry.name)
                left = taker != pid and not Path(f"/proc/{taker}").exists()
                found.append(Lock(file, pid, left or taker <= 0))
    return sorted(found, key=lambda lock: (lock.file, lock.pid))
