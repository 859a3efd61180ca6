"""Finds the control group (cgroup) of this machine below which air can create a group for each process box (a
box without a container). Such a group limits the total memory of all processes of the box.

Only root can create such a group, and only if the control group file system is writable, which it usually is
not in a container. Without a group, only the memory of each single process is limited. The launcher of a box
(`air.sandbox.guest.launcher`) creates the box's group, and removes it when the box has ended.
"""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_V1 = {"memory.limit_in_bytes": "{bytes}", "memory.memsw.limit_in_bytes": "{bytes}"}
_V2 = {"memory.max": "{bytes}", "memory.swap.max": "0"}
_TRIAL = '[ -e "$1" ] && echo 100000000 > "$1" && echo $$ > cgroup.procs'


@dataclass(frozen=True)
class ParentGroup:
    """A control group (cgroup) of this machine below which air can create a control group for each process
    box (a box without a container)."""

    folder: Path
    files: Mapping[str, str]
    """The files by which the limits of a box's group are set: file name -> text to write, with `{bytes}` for
    the limit. The first file always exists. The others limit swap, and are missing if the kernel has no swap
    or does not count it."""

    def of_box(self, name: str, limit: int) -> dict[str, object]:
        """Returns the description of a box's control group for the launcher, the program that starts the box
        and creates the group: a dict with the group's `folder` and its `files`, pairs (file name, text to
        write). `name` is the group's name, `limit` its memory limit in bytes."""
        files = [(file, text.format(bytes=limit)) for file, text in self.files.items()]
        return {"folder": str(self.folder / name), "files": files}


@cache
def find() -> ParentGroup | None:
    """Returns a control group below which this process can create groups for boxes, or None if there is none.
    To be sure, creates a trial group for a moment."""
    own = Path("/proc/self/cgroup").read_text(encoding="utf-8")
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    return next((parent for parent in candidates(own, mounts) if _works(parent)), None)


def candidates(own: str, mounts: str) -> Iterator[ParentGroup]:
    """Yields the control groups (cgroups) below which groups for boxes might be created. The group nearest to
    this process comes first.

    `own` is the text of `/proc/self/cgroup`, and `mounts` is the text of `/proc/self/mountinfo`.
    """
    paths = {name: path for line in own.splitlines() for name, path in _controllers(line)}
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        root, mount = before.split()[3:5]
        kind, _, options = after.split()[:3]
        if kind == "cgroup" and "memory" in options.split(",") and "memory" in paths:
            yield ParentGroup(_below(mount, root, paths["memory"]), _V1)
        elif kind == "cgroup2" and "" in paths:
            here = _below(mount, root, paths[""])
            # A group that contains processes cannot contain groups with limits: a group above it can.
            for folder in (here, *here.parents):
                if folder.is_relative_to(mount):
                    yield ParentGroup(folder, _V2)


def _controllers(line: str) -> Iterator[tuple[str, str]]:
    """Yields a pair (controller, path of the group) for each controller in a line of `/proc/self/cgroup`. In
    cgroup version 2, the controller's name is ""."""
    _, controllers, path = line.split(":", 2)
    yield from ((name, path) for name in controllers.split(","))


def _below(mount: str, root: str, path: str) -> Path:
    """Returns the folder of the control group `path`. The cgroup file system is mounted at `mount`, and its
    top folder is the group `root`."""
    inner = os.path.relpath(path, root)
    return Path(mount) if inner.startswith("..") else Path(mount, inner)


def _works(parent: ParentGroup) -> bool:
    """Whether air can create a control group with a memory limit below `parent`, and put a process there.
    Tries this with a process that ends at once."""
    trial = parent.folder / f"air-trial-{secrets.token_hex(8)}"
    try:
        trial.mkdir()
    except OSError:
        return False
    try:
        command = ["sh", "-c", _TRIAL, "sh", next(iter(parent.files))]
        done = subprocess.run(command, cwd=trial, stderr=subprocess.DEVNULL, check=False)
        return not done.returncode
    finally:
        trial.rmdir()
