"""Finds out in which mode process boxes (boxes without a container) get Linux namespaces on this host, and
describes such boxes for the launcher, the program that builds them (`air.sandbox.guest.launcher`).

Mode `root`: this process is root, and the kernel allows namespaces. Mode `user`: this process can create its
own user namespace. Mode `plain`: there are no namespaces, because neither is possible or because the user set
`AIR_PROCESS_BOX=plain`. A box with namespaces sees, read-only, the host's system folders, this process's
Python, and the folders in `LD_LIBRARY_PATH` and `AIR_PROCESS_SHOW`. Each of these two variables contains
paths separated by `:`.
"""

# ruff: noqa: PTH110, PTH114, PTH115, PTH117, PTH118, PTH120
# Paths are text here, not pathlib objects: pathlib would normalise a path, and every link of a chain counts.
from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from air.errors import ConfigError
from air.sandbox.contract import ownership
from air.sandbox.contract.box import BoxSpec
from air.sandbox.guest.files import deepest, holds
from air.sandbox.guest.frames import frame
from air.sandbox.guest.users import INSIDE_UID
from air.sandbox.process import cgroups
from air.sandbox.wire import connection
from air.sandbox.wire.connection import interpreter
from air.sandbox.wire.guest_box import IPC

Mode = Literal["root", "user", "plain"]
SETTING, SHOW = "AIR_PROCESS_BOX", "AIR_PROCESS_SHOW"
HOST_IDS = 0x7000_0000
"""The first of 65536 user ids of the host that no user has, and that own no files. If air runs as root (mode
`root` of process boxes, which have no container), the user id N inside a box is the user id `HOST_IDS + N` on
the host."""
MIB = 1 << 20
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix")
_ELSEWHERE = "/box"
_INODES_PER_MIB = 256
_COUNTED_BY_NAMESPACE = (5, 14)
_PROBE_SECONDS = 60
_TRIAL = ["bash", "-c", 'exec "$0" -I -c "import ctypes, json, select"']
_LOCK = threading.Lock()


@dataclass(frozen=True)
class Detection:
    """The mode in which process boxes (boxes without a container) get Linux namespaces on this machine
    (`root`, `user`, or `plain`: no namespaces), and the reason for it as a short phrase. `detect` returns
    it."""

    mode: Mode
    reason: str


def detect() -> Detection:
    """Returns the mode in which process boxes (boxes without a container) get Linux namespaces on this
    machine: `root`, `user`, or `plain` (no namespaces). To find out, starts a trial box, which blocks for
    about 0.2 s.

    The result is cached for the present values of `AIR_PROCESS_BOX` and `AIR_PROCESS_SHOW`. Raises
    ConfigError if `AIR_PROCESS_BOX` names no mode that works here, or if `AIR_PROCESS_SHOW` names a folder
    that does not exist.
    """
    with _LOCK:
        return _detected(os.environ.get(SETTING, "auto"), os.environ.get(SHOW, ""))


@cache
def _detected(setting: str, _show: str) -> Detection:
    modes = get_args(Mode)
    if setting not in ("auto", *modes):
        remedy = f"set it to auto, {', '.join(modes[:-1])} or {modes[-1]}"
        fault = f"{setting!r} is not a mode of process boxes"
        raise ConfigError(fault, where=SETTING, remedy=remedy)
    if setting == "plain":
        return Detection("plain", f"{SETTING}=plain")
    mode: Mode = "root" if _is_root() else "user"
    problem = _problem(mode) if setting in ("auto", mode) else f"this user's is {mode!r}"
    if problem and setting != "auto":
        fault = f"{setting!r} does not work here: {problem}"
        raise ConfigError(fault, where=SETTING, remedy="set it to auto or plain")
    if problem:
        return Detection("plain", f"no namespaces: {problem}")
    return Detection(mode, "namespaces as root" if mode == "root" else "namespaces of a user's own")


def _is_root() -> bool:
    """Whether this process is root, and may use the 65536 host user ids from `HOST_IDS` for boxes."""
    if os.geteuid():
        return False
    lines = Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines()
    ranges = [(int(line.split()[0]), int(line.split()[2])) for line in lines]
    return any(first <= HOST_IDS and first + count >= HOST_IDS + 65536 for first, count in ranges)


def _problem(mode: Mode) -> str:
    """Starts a trial process box (a box without a container) with the namespaces of the mode `mode` (`root`
    or `user`). Returns "" if the box starts, else the reason why it does not."""
    folder = tempfile.mkdtemp(prefix=ownership.folder_prefix())
    try:
        where, visible = places(("/workspace", "/tmp"))
        config = layout(BoxSpec(provider="process"), mode, where, visible, folder)
        config["trial"] = [*_TRIAL, sys.executable]
        code = program()
        result = subprocess.run(
            interpreter(sys.executable, code, patience=_PROBE_SECONDS),
            input=code + frame(config),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ},
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return " ".join(str(error).split())
    finally:
        if Path(folder).exists():
            Path(folder).rmdir()
    if not result.returncode:
        return ""
    lines = result.stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else f"a trial ended with status {result.returncode}"


def program() -> bytes:
    """Returns the bytecode of the program that launches a process box (a box without a container) and then
    runs the guest (air's program in the box). The first frame (message) to send to the program is the result
    of `layout`."""
    return connection.compiled((*connection.GUEST, "launcher"))


def places(folders: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Chooses the path of each writable folder in a process box (a box without a container), and finds the
    host paths that the box can see.

    Returns two dicts: {folder: its path in the box} and {host path: the same path without symbolic links}. A
    folder keeps its path, unless it would overlap a host path that the box can see. Then its path in the box
    begins with `/box`.
    """
    visible = _visible()
    where = {}
    for folder in folders:
        hidden = deepest(visible, folder) is not None
        covers = folder != "/tmp" and any(holds(folder, path) for path in visible)
        where[folder] = _ELSEWHERE + folder if hidden or covers else folder
    return where, visible


def _visible() -> dict[str, str]:
    paths = [path for path in _SYSTEM if not os.path.islink(path)]
    paths += sorted({*_python(), *_named("LD_LIBRARY_PATH"), *_named(SHOW)}, key=len)
    visible: dict[str, str] = {}
    for path in paths:
        parent = deepest(visible, path)
        if path.startswith("/") and path != "/" and not parent and os.path.exists(path):
            visible[path] = os.path.realpath(path)
    return visible


def _python() -> Iterator[str]:
    """Yields the folders that this process's Python interpreter needs in order to start."""
    yield from (sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix)
    step = sys.executable
    yield os.path.dirname(step)
    while os.path.islink(step):
        step = os.path.join(os.path.dirname(step), os.readlink(step))
        yield os.path.normpath(os.path.dirname(step))


def _named(variable: str) -> list[str]:
    paths = [os.path.normpath(path) for path in os.environ.get(variable, "").split(":") if path]
    for path in paths if variable == SHOW else ():
        if path == "/" or not os.path.isabs(path) or not os.path.exists(path):
            remedy = "name folders of this machine by their absolute paths, separated by `:`"
            raise ConfigError(f"{path!r} cannot be shown to a box", where=SHOW, remedy=remedy)
    return paths


def gpu_devices(
    uuids: Collection[str], *, driver: str = "/proc/driver/nvidia/gpus", dev: str = "/dev"
) -> list[str]:
    """Returns the paths of the device files of the NVIDIA GPUs with these UUIDs, and of the device files that
    all GPUs share. Empty if none of the GPUs exists.

    `driver` is the folder in which the NVIDIA driver describes the GPUs; `dev` is the folder of device files.
    """
    own = []
    for file in sorted(Path(driver).glob("*/information")):
        rows = (line.partition(":") for line in file.read_text(encoding="utf-8").splitlines())
        fields = {name.strip(): value.strip() for name, _, value in rows}
        if fields.get("GPU UUID") in uuids:
            own.append(f"{dev}/nvidia{fields['Device Minor']}")
    shared = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "nvidia-caps")
    devices = [*own, *(f"{dev}/{name}" for name in shared)] if own else []
    return [path for path in devices if os.path.exists(path)]


def layout(
    spec: BoxSpec,
    mode: Mode,
    where: Mapping[str, str],
    visible: Mapping[str, str],
    folder: str,
    devices: Sequence[str] = (),
) -> dict[str, Any]:
    """Returns a dict that describes a process box (a box without a container). From it, the launcher
    (`air.sandbox.guest.launcher`) builds the box.

    `mode` is `root` or `user`. `where` and `visible` are the two dicts that `places` returns. `folder` is an
    empty folder of the host, which becomes the box's root and which the launcher removes when the box ends.
    `devices` are device files, or folders with device files, that the box may use.
    """
    limits, root = spec.limits, mode == "root"
    second_user = spec.second_user and root
    owner = HOST_IDS + (0 if second_user else INSIDE_UID) if root else 0

    def options(size_mb: int, access: str) -> str:
        inodes = max(1024, size_mb * _INODES_PER_MIB)
        return f"size={size_mb}m,nr_inodes={inodes},uid={owner},gid={owner},mode={access}"

    writable = {"/dev/shm": options(limits.shm_mb, "1777")}
    for named, path in where.items():
        closed = second_user and named not in ("/workspace", "/tmp")
        access = "1777" if named == "/tmp" else "0700" if closed else "0755"
        writable[path] = options(limits.disk_mb, access)
    parent = cgroups.find() if root else None
    size_mb = limits.memory_mb + limits.disk_mb * len(where) + limits.shm_mb
    return {
        "folder": folder,
        "group": parent and parent.of_box(Path(folder).name, size_mb * MIB),
        "workspace": where["/workspace"],
        "host_ids": HOST_IDS if root else 0,
        "links": [(path, os.readlink(path)) for path in _SYSTEM if os.path.islink(path)],
        "writable": sorted(writable.items(), key=lambda item: len(item[0])),
        "shown": [(source, path) for path, source in visible.items()],
        "hidden": _hidden(spec.hidden, visible),
        "devices": list(devices),
        "trial": [],
        "shm_bytes": limits.shm_mb * MIB,
        "ipc": list(IPC.items()),
        "pids": limits.pids + (0 if root else 1) if counts_by_namespace() else 0,
    }


def _hidden(folders: Iterable[str], visible: Mapping[str, str]) -> list[str]:
    """Returns the paths at which a process box (a box without a container) would see the host folders
    `folders`. The launcher, which starts the box, hides these paths. `visible` maps each host path that the
    box sees to the same path without symbolic links."""
    real = [os.path.realpath(folder) for folder in folders if Path(folder).is_dir()]
    return sorted(
        path + folder.removeprefix(source)
        for folder in real
        for path, source in visible.items()
        if folder.startswith(f"{source}/")
    )


def counts_by_namespace() -> bool:
    """Whether the kernel counts processes separately for each user namespace (Linux 5.14 or later). If not,
    the limit `BoxLimits.pids` of a process box (a box without a container) is not enforced."""
    release = re.match(r"(\d+)\.(\d+)", platform.release())
    return release is not None and tuple(map(int, release.groups())) >= _COUNTED_BY_NAMESPACE
