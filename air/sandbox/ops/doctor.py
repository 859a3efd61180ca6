"""The checks of `air doctor`, which find out whether boxes can work on this machine.

Two checks start a box and remove it again. The other checks change nothing. The functions `judge_…` get the
data to check as arguments, so that tests can pass recorded answers of other container engines.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import ipaddress
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from air import paths
from air.errors import AirError, BoxStartError, ConfigError, MissingError
from air.sandbox import open_box
from air.sandbox.contract import ownership
from air.sandbox.contract.box import BoxSpec
from air.sandbox.docker import air_images, oci_runtime, podman
from air.sandbox.ops import listing, orphans
from air.sandbox.pool import file_locks
from air.sandbox.process import cgroups, namespaces

State = Literal["ok", "warn", "fail"]
SLOW_SECONDS = 5.0
_GB = 1e9
_BASE = "air-base"
_DEFAULT_POOLS: tuple[dict[str, Any], ...] = (
    *({"Base": f"172.{second}.0.0/16", "Size": 16} for second in range(17, 32)),
    {"Base": "192.168.0.0/16", "Size": 20},
)
"""Docker's default IP address pools. They are assumed if the container engine does not report its pools."""
_FEW_NETWORKS = 5


@dataclass(frozen=True)
class Finding:
    """The result of one check of `air doctor`, which the report shows as one line."""

    check: str
    """The name of the check, in one or two words."""
    state: State
    """`ok`: no problem. `warn`: boxes work, but something needs attention. `fail`: boxes do not work, or will
    soon stop working."""
    seen: str
    """What the check observed, as a short phrase."""
    remedy: str = ""
    """A shell command that fixes the problem or helps to find its cause. Empty if there is no such
    command."""


def examine() -> Iterator[Finding]:
    """Runs all checks of `air doctor`, and yields each result as soon as it is known. All checks together
    take several seconds."""
    from air.sandbox.docker import engine

    info: dict[str, Any] | None = None
    try:
        with engine.translating("describing itself"):
            client = engine.client()
            info, version = client.info(), client.version()
            networks = client.networks(filters={"driver": "bridge"})
            volumes = client.volumes(filters={"label": ownership.OWNER_LABEL})["Volumes"] or []
        yield judge_engine(info, version)
    except AirError as error:
        remedy = "unset DOCKER_HOST" if os.environ.get("DOCKER_HOST") else "air setup"
        yield Finding("engine", "fail", _without_remedy(error), remedy)
    if info is not None:
        if runtime := oci_runtime.name():
            yield judge_runtime(runtime, info)
        yield from _images()
        yield judge_networks(networks, info)
        yield _boxes()
        yield judge_volumes(volumes)
    yield process_boxes()
    yield _folders()
    yield from _disks(info)
    yield _processes()
    yield _locks()
    yield _gpus(info)
    if info is not None:
        yield from _one_box(info)


def process_boxes() -> Finding:
    """Checks how well process boxes (boxes without a container) are isolated on this machine. Starts a trial
    box for a moment."""
    try:
        detection = namespaces.detect()
    except ConfigError as error:
        return Finding(
            "process boxes",
            "fail",
            _without_remedy(error),
            f"unset {namespaces.SETTING} {namespaces.SHOW}",
        )
    whole = detection.mode == "root" and cgroups.find()
    memory = "for a box as a whole" if whole else "for each process, not for a box as a whole"
    return Finding(
        "process boxes", "ok", f"{detection.mode}: {detection.reason}; memory is limited {memory}"
    )


def judge_engine(info: Mapping[str, Any], version: Mapping[str, Any]) -> Finding:
    """Checks whether the container engine can enforce the limits of boxes, and whether its way to store
    images is fast enough. `info` and `version` are the engine's answers to the requests `info` and `version`
    of Docker's API."""
    name = "Podman" if podman.is_podman(version) else "Docker"
    driver, cgroups = info.get("Driver", "?"), info.get("CgroupVersion", "?")
    rootless = ", rootless" if _rootless(info) else ""
    seen = f"{name} {version.get('Version', '?')}, {driver}, cgroup v{cgroups}{rootless}"
    limits = {"memory": "MemoryLimit", "pids": "PidsLimit", "cpu": "CpuCfsQuota"}
    missing = [limit for limit, key in limits.items() if info.get(key) is False]
    if missing:
        return Finding(
            "engine", "fail", f"{seen}; cannot limit {', '.join(missing)}", _limits(info)
        )
    if driver == "vfs":
        remedy = """echo '{"storage-driver": "overlay2"}' | sudo tee /etc/docker/daemon.json"""
        return Finding("engine", "warn", f"{seen}: it copies the whole image for a box", remedy)
    return Finding("engine", "ok", seen)


def judge_runtime(runtime: str, info: Mapping[str, Any]) -> Finding:
    """Checks whether the container engine has the OCI runtime `runtime`, which the variable `AIR_OCI_RUNTIME`
    names. `info` is the engine's answer to the request `info`."""
    if problem := oci_runtime.missing(runtime, info):
        return Finding("runtime", "fail", problem, f"unset {oci_runtime.SETTING}")
    return Finding("runtime", "ok", f"{runtime} runs all containers that are boxes")


def _rootless(info: Mapping[str, Any]) -> bool:
    return "rootless" in str(info.get("SecurityOptions", ""))


def _limits(info: Mapping[str, Any]) -> str:
    """Returns the shell command that makes the container engine able to enforce all resource limits. `info`
    is the engine's answer to the request `info`."""
    if _rootless(info):
        return (
            "sudo mkdir -p /etc/systemd/system/user@.service.d && printf '[Service]\\nDelegate=cpu "
            "cpuset io memory pids\\n' | sudo tee /etc/systemd/system/user@.service.d/delegate.conf "
            "&& sudo systemctl daemon-reload (then log in again)"
        )
    return (
        "sudo sed -i 's/^GRUB_CMDLINE_LINUX=\"/&cgroup_enable=memory swapaccount=1 /' "
        "/etc/default/grub && sudo update-grub && sudo reboot"
    )


def _images() -> Iterator[Finding]:
    try:
        for image in air_images.ls():
            build = f"air images build {image.name.removeprefix('air-')}"
            if not image.id:
                state: State = "fail" if image.name == _BASE else "warn"
                yield Finding(f"image {image.name}", state, "not built", build)
            elif not image.current:
                seen = "stale: its folder has changed since it was built"
                yield Finding(f"image {image.name}", "warn", seen, build)
            else:
                yield Finding(f"image {image.name}", "ok", f"{image.size / 1e6:.0f} MB, current")
    except AirError as error:
        yield Finding("images", "fail", _without_remedy(error), "air images ls")


def judge_networks(networks: Sequence[Mapping[str, Any]], info: Mapping[str, Any]) -> Finding:
    """Checks whether the container engine still has free IP address ranges for new bridge networks.

    Boxes use no bridge network, but builds of images and compose files do. `networks` are the engine's
    descriptions of the existing bridge networks; `info` is its answer to the request `info`.
    """
    pools = [
        (ipaddress.ip_network(pool["Base"]), int(pool["Size"]))
        for pool in info.get("DefaultAddressPools") or _DEFAULT_POOLS
    ]
    room = sum(2 ** max(0, size - base.prefixlen) for base, size in pools)
    used = sum(_in_pools(network, [base for base, _ in pools]) for network in networks)
    seen = f"{used} of about {room} address pools used by bridge networks; boxes use none"
    if used >= room:
        seen = f"{seen}: no network can be made, so builds and compose files fail"
        return Finding("networks", "fail", seen, "docker network prune")
    state: State = "warn" if room > _FEW_NETWORKS >= room - used else "ok"
    return Finding("networks", state, seen, "docker network prune" if state == "warn" else "")


def _in_pools(network: Mapping[str, Any], bases: Sequence[Any]) -> bool:
    for config in (network.get("IPAM") or {}).get("Config") or []:
        subnet = ipaddress.ip_network(config.get("Subnet") or "::/128", strict=False)
        if any(subnet.version == base.version and subnet.overlaps(base) for base in bases):
            return True
    return False


def _boxes() -> Finding:
    try:
        return judge_boxes(listing.containers(), listing.helpers())
    except AirError as error:
        return Finding(
            "boxes", "fail", _without_remedy(error), "docker ps -a --filter label=air.owner"
        )


def judge_boxes(boxes: Sequence[listing.LiveBox], helpers: Sequence[listing.LiveBox]) -> Finding:
    """Checks whether one of air's containers was left behind: it has expired, or the process that started it
    is dead. `boxes` are the containers that are boxes, `helpers` are the helper containers, which store
    snapshots or copy Python."""
    kinds = _number(len(boxes), "box", "boxes")
    if helpers:
        kinds += f" and {_number(len(helpers), 'helper container', 'helper containers')}"
    stale = [one for one in (*boxes, *helpers) if one.dead or (one.seconds_left or 1) < 0]
    if stale:
        names = ", ".join(one.name for one in stale[:3]) + (" …" if len(stale) > 3 else "")
        seen = f"{len(stale)} of {kinds} have a dead owner or are expired: {names}"
        return Finding("boxes", "warn", seen, "air box gc")
    return Finding("boxes", "ok", f"{kinds}, none left behind")


def _number(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def judge_volumes(volumes: Sequence[Mapping[str, Any]]) -> Finding:
    """Checks whether one of air's volumes was left behind: it has expired, or the process that made it is
    dead. `volumes` are the container engine's descriptions of the volumes."""
    stale = []
    for volume in volumes:
        labels = volume.get("Labels") or {}
        dead = ownership.is_dead(labels.get(ownership.OWNER_LABEL, ""))
        if dead or ownership.is_left_behind(labels, now=time.time()):
            stale.append(str(volume["Name"]))
    if stale:
        seen = f"{len(stale)} of {len(volumes)} have a dead owner or are expired"
        return Finding("volumes", "warn", seen, f"docker volume rm {' '.join(stale)}")
    return Finding("volumes", "ok", f"{len(volumes)} of air, none left behind")


def _folders() -> Finding:
    folders = list(ownership.box_folders())
    stale = [str(folder) for folder, owner in folders if ownership.is_dead(owner)]
    if stale:
        seen = f"{len(stale)} folders of dead process boxes, the first {stale[0]}"
        return Finding("folders", "warn", seen, "air box gc")
    return Finding("folders", "ok", f"{len(folders)} of process boxes, none left behind")


def _disks(info: Mapping[str, Any] | None) -> Iterator[Finding]:
    root = Path(str((info or {}).get("DockerRootDir") or "/nowhere"))
    if os.environ.get("DOCKER_HOST", "unix://").startswith("unix://") and root.is_dir():
        yield judge_disk("docker", root, 10, 1, "docker system prune")
    try:
        cache = paths.cache()
        yield judge_disk("cache", cache, 2, 0.2, f"du -sh {cache}/*")
    except MissingError as error:
        yield Finding("disk cache", "fail", _without_remedy(error), "export AIR_CACHE=/var/tmp/air")
    outputs, tmp = Path("outputs").absolute(), Path(tempfile.gettempdir())
    yield judge_disk("outputs", outputs, 2, 0.2, f"du -sh {outputs}/*")
    yield judge_disk("tmp", tmp, 2, 0.2, f"du -sh {tmp}/*")


def judge_disk(name: str, folder: Path, few: float, least: float, remedy: str) -> Finding:
    """Checks whether a folder is writable, and whether its disk has enough free space and room for further
    files. If the folder does not exist, its nearest existing parent is checked.

    `name` is the disk's name in the report. With the name `docker`, the folder need not be writable. Less
    than `few` GB of free space is a warning, less than `least` GB a failure. `remedy` is a shell command
    that shows or frees the used space.
    """
    existing = next(place for place in (folder, *folder.parents) if os.access(place, os.F_OK))
    disk = os.statvfs(existing)
    free, total = disk.f_bavail * disk.f_frsize / _GB, disk.f_blocks * disk.f_frsize / _GB
    seen, check = f"{free:.1f} of {total:.0f} GB free at {folder}", f"disk {name}"
    if name != "docker" and not os.access(existing, os.W_OK | os.X_OK):
        remedy = f"sudo chown -R {os.getuid()}:{os.getgid()} {existing}"
        return Finding(check, "fail", f"{existing} cannot be written by this user", remedy)
    if disk.f_files and disk.f_favail < disk.f_files / 100:
        return Finding(check, "fail", f"{seen}, but room for only {disk.f_favail} files", remedy)
    state: State = "fail" if free < least else "warn" if free < few else "ok"
    return Finding(check, state, seen, "" if state == "ok" else remedy)


def _processes() -> Finding:
    if processes := orphans.processes():
        numbers = " ".join(str(process.pid) for process in processes)
        command = " ".join(processes[0].command.split())[:120]
        seen = (
            f"{len(processes)} still run after the air process that started them ended: {command}"
        )
        return Finding("processes", "warn", seen, f"kill -9 {numbers}")
    return Finding("processes", "ok", "none outlived the air process that started it")


def _locks() -> Finding:
    folder = file_locks.folder()
    files = [file for file in folder.glob("*") if not os.access(file, os.R_OK | os.W_OK)]
    if files:
        seen = f"{len(files)} cannot be opened by this user, the first {files[0]}"
        return Finding("locks", "fail", seen, f"sudo chmod 0666 {folder}/*")
    folders = [folder]
    with contextlib.suppress(MissingError):  # no home folder: `_disks` reports this problem
        folders.append(paths.cache())
    locks = orphans.locks(*folders)
    if stale := [lock for lock in locks if lock.orphaned]:
        numbers = " ".join(dict.fromkeys(str(lock.pid) for lock in stale))
        seen = f"{stale[0].file} is held by a child of a dead process"
        return Finding("locks", "warn", seen, f"kill -9 {numbers}")
    return Finding("locks", "ok", f"{len(locks)} held, by live processes" if locks else "none held")


def _gpus(info: Mapping[str, Any] | None) -> Finding:
    cards = list(Path("/proc/driver/nvidia/gpus").glob("*")) or list(
        Path("/dev").glob("nvidia[0-9]*")
    )
    if not cards:
        return Finding("gpus", "ok", "no NVIDIA GPU on this machine")
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return Finding("gpus", "warn", "NVML is not importable", "pip install nvidia-ml-py")
    try:
        nvml.nvmlInit()
        count, driver = nvml.nvmlDeviceGetCount(), nvml.nvmlSystemGetDriverVersion()
        nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        return Finding("gpus", "fail", f"the driver does not answer: {error}", "nvidia-smi")
    seen = f"{count} by NVML, driver {driver if isinstance(driver, str) else driver.decode()}"
    return judge_gpu_runtime(seen, info)


def judge_gpu_runtime(seen: str, info: Mapping[str, Any] | None) -> Finding:
    """Checks whether the container engine can give GPUs to containers. `seen` is a phrase about this
    machine's GPUs, with which the result's text begins.

    `info` is the engine's answer to the request `info`, or None if no container engine answers.
    """
    if info is None:
        return Finding("gpus", "ok", seen)
    specs = [Path(folder) for folder in info.get("CDISpecDirs") or []]
    cdi = any(file for folder in specs if folder.is_dir() for file in folder.glob("nvidia*"))
    if "nvidia" in (info.get("Runtimes") or {}) or cdi:
        runtime = "CDI" if cdi else "runtime"
        return Finding("gpus", "ok", f"{seen}; the Docker engine has NVIDIA's {runtime}")
    remedy = "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"
    return Finding("gpus", "warn", f"{seen}; the Docker engine has no NVIDIA runtime", remedy)


_READ_LIMITS = """
cd /sys/fs/cgroup; for f in memory.max memory/memory.limit_in_bytes pids.max pids/pids.max
do [ -r $f ] && echo ${f##*/} $(cat $f); done; true
"""


def _one_box(info: Mapping[str, Any]) -> Iterator[Finding]:
    """Starts a box, runs a command in it, reads its limits, and removes it. Yields results about the box's
    speed and limits."""
    from air.sandbox.docker import container_spec

    try:
        times, text = asyncio.run(_try_box())
    except (BoxStartError, MissingError) as error:
        check = f"docker run --rm --network none {_BASE} true"
        yield Finding("one box", "fail", _without_remedy(error), check)
        return
    except AirError as error:
        yield Finding("one box", "fail", _without_remedy(error), "air box gc")
        return
    start, command, removal = times
    seen = f"started in {start:.2f} s, a command in {command * 1000:.1f} ms, removed in {removal:.2f} s"
    slow = start > SLOW_SECONDS
    remedy = "docker stats --no-stream" if slow else ""
    yield Finding("one box", "warn" if slow else "ok", seen, remedy)
    host = container_spec.container(BoxSpec(), "", "")["host_config"]
    yield judge_limits(text, host["Memory"], host["PidsLimit"], info)


async def _try_box() -> tuple[tuple[float, float, float], str]:
    begun = time.perf_counter()
    async with await open_box(BoxSpec(), run="doctor") as box:
        started = time.perf_counter()
        await box.exec("true", timeout=30)
        ran = time.perf_counter()
        text = (await box.exec(_READ_LIMITS, timeout=30)).text
        read = time.perf_counter()
    return (started - begun, ran - started, time.perf_counter() - read), text


def judge_limits(text: str, most_memory: int, most_pids: int, info: Mapping[str, Any]) -> Finding:
    """Checks whether the kernel enforces a box's limits of memory (`most_memory` bytes) and of processes
    (`most_pids`).

    `text` is what the control group files in the box contain, as lines such as `memory.max 1073741824`.
    `info` is the container engine's answer to the request `info`, on which the remedy depends.
    """
    values = dict(line.split() for line in text.splitlines() if len(line.split()) == 2)
    memory = values.get("memory.max") or values.get("memory.limit_in_bytes")
    pids = values.get("pids.max")
    if memory is None or pids is None:
        seen = "a box cannot see its own memory and pids limits"
        return Finding("limits", "warn", seen, f"docker run --rm {_BASE} ls /sys/fs/cgroup")
    loose = [
        name
        for name, value, limit in (("memory", memory, most_memory), ("pids", pids, most_pids))
        if not value.isdigit() or int(value) > limit
    ]
    if loose:
        seen = f"set, but not enforced by the kernel: {', '.join(loose)}"
        return Finding("limits", "fail", seen, _limits(info))
    return Finding("limits", "ok", f"enforced: {int(memory) >> 20} MiB, {pids} processes")


def _without_remedy(error: AirError) -> str:
    return str(error).partition(" — ")[0]
