"""Finds out where air can make memory control groups, which limit the memory of all processes of a process
box.

Only root can make such a group, and only if the control group file system is writable; in a container it
usually is not. Without a group, only the memory of each single process is limited. The launcher of a box
(`air.sandbox.guest.launcher`) makes the group, and removes it when the box has ended.
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
class Groups:
    """A control group of this machine in which the groups of boxes can be made."""

    folder: Path
    files: Mapping[str, str]
    """The text to write into each file of a box's group, by file name. Only the first file always exists. The
    others limit swap; they are absent if the kernel has no swap or does not account for it."""

    def of_box(self, name: str, limit: int) -> dict[str, object]:
        """Returns a description of a box's group for its launcher. `name` is the group's name; `limit` is in
        bytes."""
        files = [(file, text.format(bytes=limit)) for file, text in self.files.items()]
        return {"folder": str(self.folder / name), "files": files}


@cache
def find() -> Groups | None:
    """Returns the group in which this process can make groups for boxes, or None. Makes a trial group for a
    moment, to be sure."""
    own = Path("/proc/self/cgroup").read_text(encoding="utf-8")
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    return next((groups for groups in candidates(own, mounts) if _works(groups)), None)


def candidates(own: str, mounts: str) -> Iterator[Groups]:
    """Yields groups in which groups for boxes might be made. The one nearest to this process comes first.

    `own` is the text of `/proc/self/cgroup`, and `mounts` is the text of `/proc/self/mountinfo`.
    """
    paths = {name: path for line in own.splitlines() for name, path in _controllers(line)}
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        root, mount = before.split()[3:5]
        kind, _, options = after.split()[:3]
        if kind == "cgroup" and "memory" in options.split(",") and "memory" in paths:
            yield Groups(_below(mount, root, paths["memory"]), _V1)
        elif kind == "cgroup2" and "" in paths:
            here = _below(mount, root, paths[""])
            # A group that contains processes cannot contain groups with limits: a group above it can.
            for folder in (here, *here.parents):
                if folder.is_relative_to(mount):
                    yield Groups(folder, _V2)


def _controllers(line: str) -> Iterator[tuple[str, str]]:
    """Yields the pairs (controller, path) of a line of `/proc/self/cgroup`. The name "" stands for cgroup
    version 2."""
    _, controllers, path = line.split(":", 2)
    yield from ((name, path) for name in controllers.split(","))


def _below(mount: str, root: str, path: str) -> Path:
    """Returns the folder of the group `path` in a cgroup file system, which is mounted at `mount` and whose
    top is the group `root`."""
    inner = os.path.relpath(path, root)
    return Path(mount) if inner.startswith("..") else Path(mount, inner)


def _works(groups: Groups) -> bool:
    """Whether air can limit a process in this group. Tries it with a process that ends at once."""
    trial = groups.folder / f"air-trial-{secrets.token_hex(8)}"
    try:
        trial.mkdir()
    except OSError:
        return False
    try:
        command = ["sh", "-c", _TRIAL, "sh", next(iter(groups.files))]
        done = subprocess.run(command, cwd=trial, stderr=subprocess.DEVNULL, check=False)
        return not done.returncode
    finally:
        trial.rmdir()
