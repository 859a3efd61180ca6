"""Where a process box can have a control group that bounds the memory of all its processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from air.sandbox import open_box
from air.sandbox.contract import ownership
from air.sandbox.contract.box import BoxLimits, BoxSpec
from air.sandbox.process import cgroups, namespaces

V1 = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
IN_CONTAINER = "30 23 0:26 /docker/abc /sys/fs/cgroup ro,nosuid - cgroup cgroup rw,memory\n"


@pytest.mark.parametrize(
    ("own", "mounts", "folders"),
    [
        ("8:cpu,cpuacct:/\n4:memory:/a/b\n0::/\n", V1, ["memory/a/b", "unified"]),
        ("4:memory:/docker/abc/run\n", IN_CONTAINER, ["run"]),
        ("4:memory:/elsewhere\n", IN_CONTAINER, [""]),
        ("0::/user.slice/a.scope\n", V2, ["user.slice/a.scope", "user.slice", ""]),
        ("0::/\n", V2, [""]),
        ("8:cpu:/\n", V1, []),
    ],
)
def test_groups_are_sought_near_the_own_one(own: str, mounts: str, folders: list[str]) -> None:
    groups = cgroups.candidates(own, mounts)
    assert [group.folder for group in groups] == [Path("/sys/fs/cgroup", f) for f in folders]


def test_each_version_of_control_groups_has_its_files() -> None:
    first, second = cgroups.candidates("4:memory:/a\n0::/\n", V1)
    assert first.of_box("b", 7) == {
        "folder": "/sys/fs/cgroup/memory/a/b",
        "files": [("memory.limit_in_bytes", "7"), ("memory.memsw.limit_in_bytes", "7")],
    }
    assert second.of_box("b", 7) == {
        "folder": "/sys/fs/cgroup/unified/b",
        "files": [("memory.max", "7"), ("memory.swap.max", "0")],
    }


async def test_a_box_has_a_group_while_it_lives() -> None:
    """That it bounds memory, `conformance::memory-of-many-processes-is-bounded` shows."""
    parent = cgroups.find()
    if parent is None or namespaces.detect().mode != "root":
        pytest.skip("process boxes have no control groups here")
    spec = BoxSpec(provider="process", limits=BoxLimits(memory_mb=100, disk_mb=10, shm_mb=5))
    async with await open_box(spec) as box:
        group = parent.folder / f"{ownership.folder_prefix()}{box.id.removeprefix('air-')}"
        limit = (group / next(iter(parent.files))).read_text()
        assert int(limit) == (100 + 2 * 10 + 5) << 20
    assert not group.exists()
