"""What a box uses of what it may use: by its control group in a container, else by its processes.

Part of the guest: standard library only, Python >= 3.8, no import of `air`.
"""

# ruff: noqa: PTH123
# Neither pathlib nor contextlib is worth its import at every start of a box.
from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST_ENTRIES = 20_000
_NO_LIMIT = 1 << 60


def own_group(
    limits: dict[str, int], mount: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup"
) -> Cgroup | None:
    """The container's control group; None where it has none, by the `limits` that the engine was told."""
    # Rootless Podman whose user may make no group leaves a container in that of its session, with others.
    # No path tells the two apart: a namespace of control groups calls either `/`. The limits do.
    group = Cgroup(mount, own)
    if any(group.limit(name) == most for name, most in limits.items()):
        return group
    if group.events >= 0:
        os.close(group.events)
    return None


class Cgroup:
    """The container's control group, as seen from inside: version 1 or 2, whichever counts memory.

    Args:
        mount: where control groups are mounted.
        own: the file that says which is this process's.
    """

    def __init__(self, mount: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup") -> None:
        lines = [line.split(":", 2) for line in _text(own).splitlines()]
        names = ("memory", "cpuacct", "pids")
        self.memory, self.cpu, self.pids = (_folder(mount, lines, name) for name in names)
        self.second = _exists(f"{self.memory}/memory.current")
        events = "memory.events" if self.second else "memory.oom_control"
        try:
            self.events = os.open(f"{self.memory}/{events}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self.events = -1
        self.seen = b""  # the events as they stood last, and in `killed` what they told
        self.killed: int | None = None

    def limit(self, name: str) -> int | None:
        """The limit of `memory` or `pids`; None where there is none."""
        if name == "pids":
            return _number(f"{self.pids}/pids.max")
        most = _number(f"{self.memory}/memory.{'max' if self.second else 'limit_in_bytes'}")
        return most if most is not None and most < _NO_LIMIT else None

    def out_of_memory(self) -> int | None:
        """How many processes the kernel has killed here for want of memory; None where it is not told."""
        if self.events < 0:
            return None
        events = os.pread(self.events, 4096, 0)
        if events != self.seen:
            self.seen, self.killed = events, _field(events.decode(), "oom_kill")
        return self.killed

    def usage(self) -> dict[str, Any]:
        """Memory and its limit in bytes, CPU seconds, processes and threads beside the guest."""
        used = _number(f"{self.memory}/memory.{'current' if self.second else 'usage_in_bytes'}")
        cache = "inactive_file" if self.second else "total_inactive_file"
        kept = _field(_text(f"{self.memory}/memory.stat"), cache)
        tasks = _number(f"{self.pids}/pids.current")
        return {
            # Pages of files that can be dropped at any time are nothing that a process holds.
            "memory": None if used is None else max(0, used - (kept or 0)),
            "memory_limit": self.limit("memory"),
            "cpu": self._cpu_seconds(),
            "processes": None if tasks is None else tasks - 1,
        }

    def _cpu_seconds(self) -> float | None:
        if self.second:
            micros = _field(_text(f"{self.cpu}/cpu.stat"), "usage_usec")
            return None if micros is None else micros / 1e6
        nanos = _number(f"{self.cpu}/cpuacct.usage")
        return None if nanos is None else nanos / 1e9


def of_processes(pids: set[int], guest: int) -> dict[str, Any]:
    """The same of a tree of processes, the guest's own memory and time included.

    A page that several share counts for each; who reaps no children loses their time.
    """
    page, tick = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
    memory = tasks = 0
    ticks = 0
    for pid in pids | {guest}:
        fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
        if fields:  # else it has ended meanwhile
            ticks += sum(map(int, fields[11:15]))
            tasks += int(fields[17])
            memory += int(fields[21]) * page
    return {"memory": memory, "memory_limit": None, "cpu": ticks / tick, "processes": tasks - 1}


def workspace(fd: int, most: int = MOST_ENTRIES) -> dict[str, Any]:
    """Bytes in the workspace, and how many it may hold where it is a file system of its own; where it
    is none, its files are counted, `most` at the utmost."""
    info = os.fstat(fd)
    if info.st_dev != os.stat("..", dir_fd=fd).st_dev and _is_tmpfs(info.st_dev):
        size = os.fstatvfs(fd)
        used = (size.f_blocks - size.f_bfree) * size.f_frsize
        return {"workspace": used, "workspace_limit": size.f_blocks * size.f_frsize}
    return {"workspace": _measured(fd, most), "workspace_limit": None}


def _measured(root: int, most: int) -> int | None:
    """The bytes of all files below; None where they are too many to be counted in passing, change
    while they are counted, or are closed to us."""
    total = seen = 0

    def give_up(error: OSError) -> None:
        raise error

    try:
        for _, folders, files, fd in os.fwalk(".", onerror=give_up, dir_fd=root):
            seen += len(folders) + len(files)
            if seen > most:
                return None
            for name in files:
                total += os.stat(name, dir_fd=fd, follow_symlinks=False).st_blocks * 512
    except (OSError, RecursionError):
        return None
    return total


def _is_tmpfs(device: int) -> bool:
    name = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo") as table:
        mounts = [line.split() for line in table]
    return any(m[2] == name and m[m.index("-") + 1] == "tmpfs" for m in mounts)


def _folder(mount: str, lines: list[list[str]], controller: str) -> str:
    """Where the files of one controller are; a container sees its own group as the mount's root, or,
    where the engine gives it no view of its own, below."""
    for _, names, path in lines:
        if controller in names.split(","):
            return _deeper(f"{mount}/{controller}", path)
    return _deeper(mount, next((path for number, _, path in lines if number == "0"), "/"))


def _deeper(folder: str, path: str) -> str:
    return folder + path if path != "/" and _exists(folder + path) else folder


def _exists(path: str) -> bool:
    return os.access(path, os.F_OK)


def _text(path: str) -> str:
    """A small file; empty where it is not there, or not for us."""
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def _number(path: str) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _field(text: str, name: str) -> int | None:
    """The number after `name` in lines of `name number`."""
    for line in text.splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == name:
            return int(words[1])
    return None
