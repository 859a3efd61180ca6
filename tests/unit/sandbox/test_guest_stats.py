"""What a box is said to use, from control groups of both versions and from a folder on a disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from air.sandbox.guest import usage as guest_stats
from air.sandbox.guest.usage import Cgroup, own_group

FIRST = {
    "memory/memory.usage_in_bytes": "50000000\n",
    "memory/memory.limit_in_bytes": "218103808\n",
    "memory/memory.stat": "cache 7\ntotal_cache 8\ntotal_inactive_file 1000000\n",
    "memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
    "cpuacct/cpuacct.usage": "2500000000\n",
    "pids/pids.current": "4\n",
}
SECOND = {
    "memory.current": "50000000\n",
    "memory.max": "max\n",
    "memory.stat": "anon 7\ninactive_file 1000000\n",
    "memory.events": "low 0\nhigh 0\nmax 9\noom 4\noom_kill 3\noom_group_kill 0\n",
    "cpu.stat": "usage_usec 2500000\nuser_usec 1\n",
    "pids.current": "4\n",
}
OWN_FIRST = (
    "9:name=systemd:/docker/x\n4:memory:/docker/x\n3:pids:/docker/x\n2:cpu,cpuacct:/docker/x\n"
)
ASKED = {"memory": 218_103_808, "pids": 129}
"""What the engine was told of the box whose group `FIRST` is."""
PODMAN = """9:name=systemd:/
8:pids:/
7:blkio:/
6:freezer:/
5:devices:/
4:memory:/session/b8376f8121d1333d0e136f2e7d1b85dd
3:cpuset:/
2:cpuacct:/
1:cpu:/
0::/
"""
"""What a box under rootless Podman 4.3 sees on a host with the first version."""
SESSION = {
    "memory/memory.usage_in_bytes": "590368768\n",
    "memory/memory.limit_in_bytes": "9223372036854771712\n",
    "memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n",
    "cpuacct/cpuacct.usage": "834372876690\n",
}
USED = {"memory": 49_000_000, "cpu": 2.5, "processes": 3}
UNKNOWN = {"memory": None, "memory_limit": None, "cpu": None, "processes": None}


def _laid(folder: Path, files: dict[str, str], own: str, below: str = "") -> tuple[str, str]:
    """Where control groups are mounted, and the file that says which is one's own."""
    for name, text in files.items():
        file = folder / "mount" / below / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (folder / "own").write_text(own)
    return str(folder / "mount"), str(folder / "own")


def _open_files(folder: Path) -> int:
    links = Path("/proc/self/fd").iterdir()
    return sum(os.path.realpath(link).startswith(f"{folder}/") for link in links)


def _cgroup(folder: Path, files: dict[str, str], own: str, below: str = "") -> Cgroup:
    return Cgroup(*_laid(folder, files, own, below))


@pytest.mark.parametrize(
    ("files", "own", "below", "usage", "killed"),
    [
        (FIRST, OWN_FIRST, "", USED | {"memory_limit": 218_103_808}, 3),
        (SECOND, "0::/\n", "", USED | {"memory_limit": None}, 3),
        (SECOND, "0::/docker/x\n", "docker/x", USED | {"memory_limit": None}, 3),
        (SECOND, "0::/docker/x\n", "", USED | {"memory_limit": None}, 3),
        ({}, "", "", UNKNOWN, None),
        ({}, OWN_FIRST, "", UNKNOWN, None),
    ],
    ids=["v1", "v2", "v2-below", "v2-own-root", "hidden", "v1-hidden"],
)
def test_control_groups(
    tmp_path: Path, files: dict[str, str], own: str, below: str, usage: Any, killed: int | None
) -> None:
    cgroup = _cgroup(tmp_path, files, own, below)
    assert cgroup.usage() == usage
    assert cgroup.out_of_memory() == killed


def test_no_limit_of_the_first_version_is_none(tmp_path: Path) -> None:
    files = FIRST | {"memory/memory.limit_in_bytes": "9223372036854771712\n"}
    assert _cgroup(tmp_path, files, OWN_FIRST).usage()["memory_limit"] is None


@pytest.mark.parametrize(
    ("files", "own", "is_own"),
    [
        (FIRST, OWN_FIRST, True),
        (SECOND | {"memory.max": "218103808\n", "pids.max": "max\n"}, "0::/\n", True),
        (SECOND | {"pids.max": "129\n"}, "0::/\n", True),
        (SESSION, PODMAN, False),
        (SECOND, "0::/\n", False),
        (SECOND | {"memory.max": "8589934592\n", "pids.max": "9000\n"}, "0::/\n", False),
        ({}, "0::/\n", False),
    ],
    ids=["v1", "v2", "v2-pids-alone", "podman-v1", "v2-loose", "v2-a-sessions", "hidden"],
)
def test_a_group_is_a_boxs_own_where_it_holds_it_to_its_limits(
    tmp_path: Path, files: dict[str, str], own: str, is_own: bool
) -> None:
    where = _laid(tmp_path, files, own)
    before = _open_files(tmp_path)
    group = own_group(ASKED, *where)
    assert (group is not None) == is_own
    if group is not None:
        assert group.out_of_memory() == 3
        os.close(group.events)
    assert _open_files(tmp_path) == before


def test_a_workspace_on_a_disk_is_measured(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_bytes(b"x" * 100_000)
    (tmp_path / "link").symlink_to("/usr")
    fd = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    try:
        said = guest_stats.workspace(fd)
        assert said["workspace_limit"] is None
        assert 100_000 <= said["workspace"] < 200_000
        assert guest_stats.workspace(fd, most=4) == said
        assert guest_stats.workspace(fd, most=3) == {"workspace": None, "workspace_limit": None}
    finally:
        os.close(fd)


def test_processes_are_summed() -> None:
    one = guest_stats.of_processes(set(), os.getpid())
    assert one["memory"] > 1 << 20
    assert one["cpu"] > 0
    assert one["memory_limit"] is None
    gone = guest_stats.of_processes({2**22 + 1}, os.getpid())
    assert gone["processes"] == one["processes"]
