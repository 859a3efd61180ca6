"""Identifies the owner of a box (the process that started the box) by labels and folder names, and tests
whether the owner is dead.

An owner counts as dead only if its death is certain: the owner's label was made on this machine, since the
last boot, and in the pid namespace of the testing process; and no live process has the owner's pid and start
time.
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from air.errors import BoxDiedError, InfrastructureError, boundary

RUN_LABEL, OWNER_LABEL, EXPIRES_LABEL = "air.run", "air.owner", "air.expires"
GPU_LABEL = "air.gpu"
HELPER_LABEL = "air.helper"
"""The container label that marks helper containers: containers in which only air's own programs run, no
agent. They are no boxes."""
USER_LABEL, WORKSPACE_LABEL = "air.user", "air.workspace"
"""Two container labels that `air box exec` reads: the user who runs the box's commands (`uid:gid`, `uid` or a
name), and the path of the box's workspace."""
FOLDER_PREFIX = "air-box-"
OWNER_ENV = "AIR_OWNER"
"""The environment variable through which child processes get the owner label of their parent; see
`mark_children`."""
WARM_SECONDS = 3600.0
"""Maximum number of seconds for which a started box may wait in the box pool for a caller. The time in a
box's expiry label, after which `air box gc` may remove the box, includes this wait and the time to live."""


def owner() -> str:
    """Returns the label by which boxes name this process as their owner: `host:pid:start`.

    `host` identifies the machine, its boot and the pid namespace; `start` is the process's start time in
    clock ticks since boot.
    """
    return f"{_host()}:{os.getpid()}:{_start_time(os.getpid())}"


def mark_children() -> None:
    """Sets the environment variable `OWNER_ENV` of this process to its owner label (`host:pid:start`), so
    that child processes inherit the label.

    Child processes that outlive this process can then be found by the label in their environment.
    """
    os.environ[OWNER_ENV] = owner()


def run_id() -> str:
    """Returns the id of the run of air to which this process belongs. All boxes of the run have this id in a
    label. It is the value of the environment variable `AIR_RUN`, or by default the pid and start time of this
    process."""
    return os.environ.get("AIR_RUN") or f"{os.getpid()}-{_start_time(os.getpid())}"


def is_dead(label: str) -> bool:
    """Whether the process that an owner label names is certainly dead. `label` has the form that `owner`
    returns. False if this is uncertain, for example because the process ran on another machine."""
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
        return False  # the process exists, but /proc hides other users' processes
    return _start_time(int(parts[1])) != parts[2]


def is_left_behind(labels: Mapping[str, str], *, now: float) -> bool:
    """Whether a container with these labels (names and values) was started by air and may be removed, because
    its expiry time is before `now` (epoch seconds) or its owner process is dead."""
    if OWNER_LABEL not in labels or EXPIRES_LABEL not in labels:
        return False
    try:
        expired = float(labels[EXPIRES_LABEL]) < now
    except ValueError:
        return False
    return expired or is_dead(labels[OWNER_LABEL])


def make_folder() -> Path:
    """Makes an empty folder for a snapshot, inside of the system's folder for temporary files, and returns
    its path. Raises InfrastructureError if that is impossible, for example because the disk is full."""
    with boundary(InfrastructureError, "no folder for a snapshot can be made", OSError):
        return Path(tempfile.mkdtemp(prefix=folder_prefix()))


def remove_folder(folder: Path) -> None:
    """Removes the folder of a process box (a box without a container) or of a snapshot, if it exists. Blocks.
    Raises BoxDiedError if the folder cannot be removed.

    Uses the program `rm`, because commands may have nested thousands of folders, on which Python's
    `shutil.rmtree` fails with a RecursionError.
    """
    if not os.path.lexists(folder):
        return  # the guest removed it
    with boundary(BoxDiedError, f"the folder {folder} of a box cannot be removed", OSError):
        done = _run("rm", "-rf", "--", str(folder))
        if done.returncode:  # commands may have removed their own user's rights to folders
            _run("chmod", "-R", "u+rwX", "--", str(folder))
            done = _run("rm", "-rf", "--", str(folder))
        if done.returncode and os.path.lexists(folder):
            raise OSError(done.stderr.strip()[-300:])


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )


def box_folders() -> Iterator[tuple[Path, str]]:
    """Yields a pair for each process box on this machine (a box without a container): the path of its folder,
    and the label of the process that started it. Also yields the folders of snapshots, because their names
    have the same form."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        if label := folder_owner(folder.name):
            yield folder, label


def folder_owner(name: str) -> str:
    """Returns the label of the process that started a process box (a box without a container). Takes it from
    `name`, the name of the box's folder. Returns "" if `name` does not have the form of such a name.

    The folder's name contains the pid namespace, because processes of several pid namespaces may share the
    parent folder.
    """
    namespace, pid, start, *rest = [*name.removeprefix(FOLDER_PREFIX).split("-", 3), "", "", ""]
    is_box = name.startswith(FOLDER_PREFIX) and all(map(str.isdigit, (namespace, pid, start)))
    return f"{_machine()}/{namespace}:{pid}:{start}" if is_box and rest[0] else ""


def folder_prefix() -> str:
    """Returns the beginning of the names of all folders that this process makes for process boxes (boxes
    without a container) and snapshots. The folder of a process box with the id `air-X` has this prefix
    followed by `X` as its name."""
    return f"{FOLDER_PREFIX}{_namespace()}-{os.getpid()}-{_start_time(os.getpid())}-"


def expires(seconds: float) -> str:
    """Returns the value of a new box's expiry label, the time after which `air box gc` may remove the box:
    the current time plus `seconds` (its time to live) plus `WARM_SECONDS`, in epoch seconds."""
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
    """Returns the start time of the process `pid` in clock ticks since boot, or "" if no live process has
    this pid."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in ("Z", "X") else fields[19]
