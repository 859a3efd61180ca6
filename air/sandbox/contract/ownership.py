"""The owners of boxes: labels of containers, names of folders, and whether an owner is dead.

An owner is a process. It counts as dead only if that is certain: it ran on the same kernel in the same
process namespace, and no process has its pid and start time.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from air.errors import BoxDiedError

RUN_LABEL, OWNER_LABEL, EXPIRES_LABEL = "air.run", "air.owner", "air.expires"
GPU_LABEL = "air.gpu"
FOLDER_PREFIX = "air-box-"
OWNER_ENV = "AIR_OWNER"
"""The environment variable that names the owner of a process that air started."""
WARM_SECONDS = 3600.0
"""Seconds that a box may wait for its hand-out; its label expires that much later."""


def owner() -> str:
    """This process as `host:pid:start`; `host` names the machine, its boot and its pid namespace."""
    return f"{_host()}:{os.getpid()}:{_start_time(os.getpid())}"


def mark_children() -> None:
    """Sets `OWNER_ENV`, so that all later child processes name this process as their owner."""
    os.environ[OWNER_ENV] = owner()


def run_id() -> str:
    """The run of this process: `AIR_RUN`, or an id of its own."""
    return os.environ.get("AIR_RUN") or f"{os.getpid()}-{_start_time(os.getpid())}"


def is_dead(label: str) -> bool:
    """Whether the owner is certainly gone. An owner on another machine never counts as gone."""
    parts = label.rsplit(":", 2)
    if len(parts) != 3 or parts[0] != _host() or not parts[1].isdigit():
        return False
    if start := _start_time(int(parts[1])):
        return start != parts[2]
    try:
        os.kill(int(parts[1]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False  # it exists, but /proc hides other users' processes
    return _start_time(int(parts[1])) != parts[2]


def is_left_behind(labels: Mapping[str, str], *, now: float) -> bool:
    """Whether a container with these labels belongs to air and may be removed.

    Args:
        labels: the container's labels.
        now: seconds since the epoch.
    """
    if OWNER_LABEL not in labels or EXPIRES_LABEL not in labels:
        return False
    try:
        expired = float(labels[EXPIRES_LABEL]) < now
    except ValueError:
        return False
    return expired or is_dead(labels[OWNER_LABEL])


def remove_folder(folder: Path) -> None:
    """Removes a folder of a box; an absent folder is fine. Blocks.

    Raises:
        BoxDiedError: it cannot be removed.
    """
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return  # the guest removed it
    except OSError as error:
        raise BoxDiedError(f"the folder {folder} of a box cannot be removed: {error}") from error


def box_folders() -> Iterator[tuple[Path, str]]:
    """Every folder of a process box on this machine, with its owner."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        if label := folder_owner(folder.name):
            yield folder, label


def folder_owner(name: str) -> str:
    """The owner of the process box whose folder is called `name`; empty if no box has such a name.

    Folders of several pid namespaces may lie in one place, so the names contain the namespace.
    """
    namespace, pid, start, *rest = [*name.removeprefix(FOLDER_PREFIX).split("-", 3), "", "", ""]
    ours = name.startswith(FOLDER_PREFIX) and all(map(str.isdigit, (namespace, pid, start)))
    return f"{_machine()}/{namespace}:{pid}:{start}" if ours and rest[0] else ""


def folder_prefix() -> str:
    """The prefix of the names of this process's box folders; the box's id without `air-` follows."""
    return f"{FOLDER_PREFIX}{_namespace()}-{os.getpid()}-{_start_time(os.getpid())}-"


def expires(seconds: float) -> str:
    """The label of a box that may live `seconds` after its hand-out: seconds since the epoch."""
    return f"{time.time() + seconds + WARM_SECONDS:.0f}"


@cache
def _machine() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{socket.gethostname()}/{boot[:8]}"


@cache
def _namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116 — Path.stat is the same call


def _host() -> str:
    return f"{_machine()}/{_namespace()}"


def _start_time(pid: int) -> str:
    """The start time of a process in clock ticks since boot; empty if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in ("Z", "X") else fields[19]
