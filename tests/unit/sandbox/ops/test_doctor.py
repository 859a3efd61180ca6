"""What the doctor makes of what an engine and a machine say; and what it takes for a leftover."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from air.cli.main import main
from air.sandbox.contract import ownership
from air.sandbox.ops import doctor, listing, orphans
from air.sandbox.process import namespaces

# What engines answered: Docker 20.10 on cgroup v1; a rootless one without delegation; Podman 4.3.
INFO = {
    "Driver": "overlay2",
    "CgroupVersion": "1",
    "MemoryLimit": True,
    "PidsLimit": True,
    "CpuCfsQuota": True,
    "SecurityOptions": ["name=seccomp,profile=default"],
    "Runtimes": {"io.containerd.runc.v2": {"path": "runc"}, "runc": {"path": "runc"}},
}
ROOTLESS = INFO | {
    "CgroupVersion": "2",
    "MemoryLimit": False,
    "PidsLimit": False,
    "SecurityOptions": ["name=seccomp,profile=default", "name=rootless", "name=cgroupns"],
}
DOCKER = {"Version": "20.10.24", "Components": [{"Name": "Engine"}]}
PODMAN = {"Version": "4.3.1", "Components": [{"Name": "Podman Engine"}]}


def _bridge(subnet: str) -> dict[str, Any]:
    return {"Name": "x", "Driver": "bridge", "IPAM": {"Config": [{"Subnet": subnet}]}}


@pytest.mark.parametrize(
    ("info", "version", "state", "seen", "remedy"),
    [
        (INFO, DOCKER, "ok", "Docker 20.10.24, overlay2, cgroup v1", ""),
        (INFO, PODMAN, "ok", "Podman 4.3.1, ", ""),
        (INFO | {"PidsLimit": False}, DOCKER, "fail", "cannot limit pids", "update-grub"),
        (ROOTLESS, DOCKER, "fail", "rootless; cannot limit memory, pids", "Delegate=cpu"),
        (INFO | {"Driver": "vfs"}, DOCKER, "warn", "copies the whole image", "overlay2"),
    ],
)
def test_engines(
    info: dict[str, Any], version: dict[str, Any], state: str, seen: str, remedy: str
) -> None:
    finding = doctor.judge_engine(info, version)
    assert finding.state == state
    assert seen in finding.seen
    assert bool(finding.remedy) == bool(remedy)
    assert remedy in finding.remedy


@pytest.mark.parametrize(
    ("subnets", "state", "used"),
    [
        ([], "ok", "0 of about 31"),
        ([f"172.{i}.0.0/16" for i in range(17, 42)], "ok", "15 of about 31"),
        (
            [f"172.{i}.0.0/16" for i in range(17, 32)]
            + [f"192.168.{16 * i}.0/20" for i in range(11)],
            "warn",
            "26 of about 31",
        ),
        (
            [f"172.{i}.0.0/16" for i in range(17, 32)]
            + [f"192.168.{16 * i}.0/20" for i in range(16)],
            "fail",
            "31 of about 31",
        ),
        (["fd00::/64"], "ok", "0 of about 31"),
    ],
)
def test_address_pools(subnets: list[str], state: str, used: str) -> None:
    finding = doctor.judge_networks([_bridge(subnet) for subnet in subnets], INFO)
    assert finding.state == state
    assert used in finding.seen
    assert finding.remedy == ("" if state == "ok" else "docker network prune")


def test_address_pools_that_an_engine_was_given() -> None:
    info = INFO | {"DefaultAddressPools": [{"Base": "10.8.0.0/16", "Size": 24}]}
    full = [_bridge(f"10.8.{i}.0/24") for i in range(256)]
    assert doctor.judge_networks(full, info).state == "fail"
    assert "255 of about 256" in doctor.judge_networks(full[1:], info).seen
    assert doctor.judge_networks([{"Name": "none", "IPAM": {"Config": None}}], info).state == "ok"


def _dead_owner() -> str:
    host, _, start = ownership.owner().rsplit(":", 2)
    pid = subprocess.check_output([sys.executable, "-c", "import os; print(os.getpid())"])
    return f"{host}:{int(pid)}:{start}"


def test_volumes_of_the_dead_are_named() -> None:
    ours = {"Name": "alive", "Labels": {ownership.OWNER_LABEL: ownership.owner()}}
    elsewhere = {"Name": "elsewhere", "Labels": {ownership.OWNER_LABEL: "other/0/0:1:1"}}
    dead = {"Name": "dead", "Labels": {ownership.OWNER_LABEL: _dead_owner()}}
    expired = {"Name": "old", "Labels": ours["Labels"] | {ownership.EXPIRES_LABEL: "1"}}  # type: ignore[operator]
    finding = doctor.judge_volumes([ours, elsewhere, {"Name": "foreign", "Labels": None}])
    assert (finding.state, finding.remedy) == ("ok", "")
    finding = doctor.judge_volumes([ours, dead, elsewhere, expired])
    assert (finding.state, finding.remedy) == ("warn", "docker volume rm dead old")


def test_boxes_and_helper_containers_are_counted_apart() -> None:
    def live(name: str, owner: str, seconds_left: float = 60.0) -> listing.LiveBox:
        return listing.LiveBox(name, "docker", "running", "run", owner, seconds_left, "id")

    box, helper = live("air-1", ownership.owner()), live("air-keeper-1", ownership.owner())
    dead, expired = live("air-2", _dead_owner()), live("air-keeper-2", ownership.owner(), -1.0)
    assert doctor.judge_boxes([], []).seen == "0 boxes, none left behind"
    finding = doctor.judge_boxes([box], [helper, helper])
    assert (finding.state, finding.remedy) == ("ok", "")
    assert finding.seen == "1 box and 2 helper containers, none left behind"
    finding = doctor.judge_boxes([box, dead], [expired])
    assert (finding.state, finding.remedy) == ("warn", "air box gc")
    assert finding.seen == (
        "2 of 2 boxes and 1 helper container have a dead owner or are expired: air-2, air-keeper-2"
    )


@pytest.mark.parametrize(
    ("text", "state", "seen"),
    [
        ("memory.max 1000\npids.max 9\n", "ok", "enforced"),
        ("memory.limit_in_bytes 4096\npids.max 8\n", "ok", "enforced"),
        ("memory.max max\npids.max 9\n", "fail", "memory"),
        ("memory.limit_in_bytes 9223372036854771712\npids.max max\n", "fail", "memory, pids"),
        ("", "warn", "cannot see"),
    ],
)
def test_limits_as_a_box_sees_them(text: str, state: str, seen: str) -> None:
    finding = doctor.judge_limits(text, 4096, 9, INFO)
    assert finding.state == state
    assert seen in finding.seen
    assert bool(finding.remedy) == (state != "ok")


def test_a_disk_with_little_room(tmp_path: Path) -> None:
    absent = tmp_path / "not" / "there"
    for few, least, state in ((0, 0, "ok"), (1e9, 0, "warn"), (1e9, 1e9, "fail")):
        finding = doctor.judge_disk("cache", absent, few, least, "du")
        assert (finding.check, finding.state) == ("disk cache", state)
        assert finding.remedy == ("" if state == "ok" else "du")
        assert str(absent) in finding.seen
    assert not absent.exists()


CLOSED = """
import os, sys
from pathlib import Path
from air.sandbox.ops import doctor
if os.geteuid() == 0:
    os.setuid(65534)
finding = doctor.judge_disk("cache", Path(sys.argv[1], "below"), 0, 0, "du")
print(finding.state, finding.remedy)
"""


def test_a_folder_that_cannot_be_written() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o555)
        argv = [sys.executable, "-c", CLOSED, folder]
        said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    user = 65534 if os.geteuid() == 0 else os.getuid()
    assert said[:4] == ["fail", "sudo", "chown", "-R"]
    assert said[4].startswith(f"{user}:")
    assert said[5] == folder


def test_gpus_that_the_engine_cannot_give(tmp_path: Path) -> None:
    judge = doctor.judge_gpu_runtime
    assert judge("2 by NVML", None).state == "ok"
    assert judge("2 by NVML", INFO).remedy.startswith("sudo nvidia-ctk runtime configure")
    runtimes = INFO | {"Runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}
    assert judge("2 by NVML", runtimes).state == "ok"
    spec = INFO | {"CDISpecDirs": [str(tmp_path), str(tmp_path / "absent")]}
    assert judge("2 by NVML", spec).state == "warn"
    (tmp_path / "nvidia.yaml").touch()
    assert "CDI" in judge("2 by NVML", spec).seen


# Leftovers: real processes, whose owner really was killed.

OWNER = """
import subprocess, sys
from air.sandbox.contract import ownership
ownership.mark_children()
child = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, start_new_session=True)
print(child.pid, flush=True)
sys.stdin.read()
"""


def _stale() -> set[int]:
    return {process.pid for process in orphans.processes()}


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("end", [signal.SIGKILL, None])
def test_a_process_that_outlived_its_owner(end: signal.Signals | None) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with owner:
        assert owner.stdout is not None
        child = int(owner.stdout.readline())
        try:
            assert child not in _stale()
            if end is not None:
                owner.send_signal(end)
            owner.communicate()
            assert child in _stale()
        finally:
            _kill(child)


@asynccontextmanager
async def _sleeper(**options: Any) -> AsyncIterator[int]:
    process = await asyncio.create_subprocess_exec("sleep", "600", **options)
    try:
        yield process.pid
    finally:
        process.kill()
        await process.wait()


@pytest.fixture
def dead_folder(tmp_path: Path) -> Path:
    """The folder of a process box whose owner is dead, where no other process collects it."""
    host, pid, start = _dead_owner().rsplit(":", 2)
    namespace = host.rpartition("/")[2]
    folder = tmp_path / f"{ownership.FOLDER_PREFIX}{namespace}-{pid}-{start}-0123"
    folder.mkdir()
    return folder


async def test_only_what_one_of_ours_gave_makes_a_process_ours(
    dead_folder: Path, tmp_path: Path
) -> None:
    path = {"PATH": os.environ["PATH"]}
    command = path | {"AIR_COMMAND": "0123-1", "HOME": f"{dead_folder}/workspace"}
    async with (
        _sleeper(env=path | {ownership.OWNER_ENV: _dead_owner()}) as owned,
        _sleeper(env=command) as boxed,
        _sleeper(env=path | {"HOME": f"{dead_folder}/workspace"}, cwd=dead_folder) as visitor,
        _sleeper(env=path | {ownership.OWNER_ENV: "other/0/0:1:1"}) as elsewhere,
        _sleeper(env=path | {ownership.OWNER_ENV: ownership.owner()}) as living,
        _sleeper(env=command | {"HOME": str(tmp_path)}) as lost,
    ):
        found = _stale()
        assert {owned, boxed} <= found
        assert not {visitor, elsewhere, living, lost} & found


HOLDER = """
import fcntl, os, subprocess, sys, time
file = open(sys.argv[1], "a")
fcntl.flock(file, fcntl.LOCK_EX)
child = subprocess.Popen(["sleep", "600"], pass_fds=[file.fileno()])
print(child.pid, flush=True)
sys.stdin.read()
"""


def test_a_lock_that_a_child_keeps(tmp_path: Path) -> None:
    file = tmp_path / "images.lock"
    argv = [sys.executable, "-c", HOLDER, str(file)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        try:
            held = {(lock.pid, lock.orphaned) for lock in orphans.locks(tmp_path)}
            assert held == {(holder.pid, False), (child, False)}
            assert orphans.locks(tmp_path / "elsewhere") == []
            holder.kill()
            holder.wait()
            (lock,) = orphans.locks(tmp_path)
            assert (lock.file, lock.pid, lock.orphaned) == (str(file), child, True)
        finally:
            _kill(child)


@pytest.fixture
def no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.setenv("AIR_CACHE", str(tmp_path / "cache"))


Doctor = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def air_doctor(capsys: pytest.CaptureFixture[str]) -> Doctor:
    def call() -> tuple[int, dict[str, Any]]:
        code = main(["doctor", "--json"])
        return code, json.loads(capsys.readouterr().out)

    return call


@pytest.mark.usefixtures("no_engine")
def test_without_an_engine_the_rest_is_still_looked_at(air_doctor: Doctor) -> None:
    code, said = air_doctor()
    by_name = {finding["check"]: finding for finding in said["findings"]}
    assert (code, said["ok"]) == (1, False)
    assert by_name["engine"]["state"] == "fail"
    assert by_name["engine"]["remedy"] == "unset DOCKER_HOST"
    seen = f"DOCKER_HOST={os.environ['DOCKER_HOST']}: no Docker engine answers: its socket is not there"
    assert by_name["engine"]["seen"] == seen
    assert {"folders", "disk cache", "disk tmp", "processes", "locks", "gpus"} <= set(by_name)
    assert "one box" not in by_name


@pytest.mark.usefixtures("no_engine")
def test_a_folder_of_a_dead_process_box_is_seen_and_collected(dead_folder: Path) -> None:
    def air(*args: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "air.cli.main", *args]
        env = os.environ | {"TMPDIR": str(dead_folder.parent)}
        return subprocess.run(argv, capture_output=True, text=True, check=False, env=env)

    findings = json.loads(air("doctor", "--json").stdout)["findings"]
    finding = next(each for each in findings if each["check"] == "folders")
    assert (finding["state"], finding["remedy"]) == ("warn", "air box gc")
    done = air(*finding["remedy"].split()[1:])
    assert str(dead_folder) in done.stdout
    assert not dead_folder.exists()
    assert (done.returncode, done.stderr.partition("=")[0]) == (2, "error: DOCKER_HOST")


@pytest.mark.usefixtures("no_engine")
def test_one_line_a_check_with_its_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == [
        *("fail", "engine", f"DOCKER_HOST={os.environ['DOCKER_HOST']}:", "no", "Docker", "engine"),
        *("answers:", "its", "socket", "is", "not", "there", "→", "unset", "DOCKER_HOST"),
    ]
    assert all(line.split()[0] in ("ok", "warn", "fail") for line in lines)


def test_what_isolates_process_boxes_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(namespaces.SETTING, "plain")
    finding = doctor.process_boxes()
    assert finding.seen == (
        "plain: AIR_PROCESS_BOX=plain; memory is limited for each process, not for a box as a whole"
    )
    monkeypatch.setenv(namespaces.SETTING, "best")
    finding = doctor.process_boxes()
    assert (finding.state, finding.remedy) == ("fail", "unset AIR_PROCESS_BOX AIR_PROCESS_SHOW")
