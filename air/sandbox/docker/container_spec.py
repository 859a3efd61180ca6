"""Translates a `BoxSpec` (the settings of a box) into the arguments of the Docker SDK's `create_container`.

The container has no network, gets no new privileges, and has no swap space. Its processes, memory and CPU
time are limited. Its root file system is read-only, except in an open box, whose commands may write
everywhere. Its writable folders lie in memory (tmpfs), unless an open box keeps its image's files there. The
size of each writable folder in memory is limited. The memory limit of the container is the sum of
`BoxLimits.memory_mb` and these sizes, so full folders take no memory from the processes. The first process,
the guest (air's program in the box), starts as root with few capabilities, so that the guest and its commands
can become two other users (`air.sandbox.guest.users`).
"""

from __future__ import annotations

import posixpath
import resource
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import docker

from air.sandbox.contract import open_box, ownership
from air.sandbox.contract.box import SECOND_UID_ENV, WORKSPACE, BoxSpec
from air.sandbox.docker import engine, engine_support, oci_runtime
from air.sandbox.guest.users import INSIDE_UID
from air.sandbox.pool.gpu_leases import GpuLease
from air.sandbox.wire.connection import interpreter
from air.sandbox.wire.guest_box import IPC, SECOND_UID, base_env, folders, home

MIB = 1 << 20
TMP_MB = 64
_INODES_PER_MIB = 256
OPEN_CAPABILITIES = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "NET_BIND_SERVICE"]
"""Linux capabilities that the guest (air's program in a box) gets in an open box, in addition to those that
it gets in other boxes. The guest passes them on to commands that run as root; see
`air.sandbox.guest.users.ROOTS`."""


class GuestPython(NamedTuple):
    """The Python interpreter that runs the guest (air's program in a box): the image's own, or one that is
    mounted into the container."""

    command: tuple[str, ...] = ("python3",)
    """The command that starts the interpreter. For a mounted Python, it begins with the dynamic loader."""
    mounts: tuple[docker.types.Mount, ...] = ()
    """The mounts that the interpreter needs. Empty if it is the image's own."""


def container(
    spec: BoxSpec,
    name: str,
    run: str,
    gpus: GpuLease | None = None,
    python: GuestPython | None = None,
    files: Sequence[docker.types.Mount] = (),
) -> dict[str, Any]:
    """Returns the arguments of the Docker SDK's `create_container` for a box called `name`.

    `run` is the id of the run of air that starts the box, for the container's labels (empty: the run of this
    process). `gpus` are the GPUs that the box gets (None: no GPUs). `python` is the interpreter that runs the
    guest, air's program in the box (None: the image's own). `files` are the mounts that
    `container_files.mounts` returns; without them, the engine sets up the box's network.
    """
    gpus, python = gpus or GpuLease(), python or GuestPython()
    limits, keeps = spec.limits, bool(spec.open and spec.open.keep)
    in_memory = limits.disk_mb * (len(spec.scratch) + (not keeps)) + (0 if keeps else TMP_MB)
    memory = (limits.memory_mb + in_memory + limits.shm_mb) * MIB
    arguments = common_arguments(
        name,
        run,
        limits.seconds,
        memory,
        cap_add=[*engine_support.capabilities(), *(OPEN_CAPABILITIES if spec.open else [])],
        read_only=spec.open is None,
        runtime=oci_runtime.name() or None,
        security_opt=["no-new-privileges"],
        init=False,
        ipc_mode="private",
        sysctls={f"kernel.{name}": value for name, value in IPC.items()},
        # One more for the guest, and one for the Python that it starts in advance.
        pids_limit=oci_runtime.process_limit(limits.pids + (2 if spec.prestart else 1)),
        nano_cpus=int(limits.cpus * 1e9),
        shm_size=limits.shm_mb * MIB,
        device_requests=_devices(gpus),
        tmpfs=_tmpfs(spec),
        mounts=[*python.mounts, *files],
    )
    user, workspace = _user_and_workspace(spec)
    arguments["labels"] |= {ownership.USER_LABEL: user, ownership.WORKSPACE_LABEL: workspace}
    if gpus.gpus:
        arguments["labels"][ownership.GPU_LABEL] = gpus.label
    return arguments | {
        "image": spec.image,
        "hostname": "box",
        "user": "0:0",
        "network_disabled": bool(files),
        "entrypoint": [*python.command, *interpreter("python3")[1:]],
        "working_dir": "/" if keeps else home(spec),
        "environment": _environment(spec, gpus),
    }


def common_arguments(
    name: str, run: str, seconds: float, memory: int, **host: Any
) -> dict[str, Any]:
    """Returns the arguments of `create_container` that boxes and helper containers have in common.

    `run` is the id of the run of air (empty: the run of this process). `seconds` is the time to live of the
    container, for its expiry label. `memory` is its memory limit in bytes. `host` are further arguments of
    the Docker SDK's `create_host_config`.
    """
    shared = {
        "auto_remove": True,
        "network_mode": "none",
        "cap_drop": ["ALL"],
        "read_only": True,
        "mem_limit": memory,
        "memswap_limit": memory,
        "log_config": docker.types.LogConfig(type="none"),  # no copy of the output is stored
    }
    config = engine.client().create_host_config(**(shared | host))
    return {
        "name": name,
        "command": [],
        "stdin_open": True,
        "stop_signal": "SIGKILL",  # because the guest ignores SIGTERM: a stopping engine would wait in vain
        "labels": {
            ownership.RUN_LABEL: run or ownership.run_id(),
            ownership.OWNER_LABEL: ownership.owner(),
            ownership.EXPIRES_LABEL: ownership.expires(seconds),
        },
        "healthcheck": {"test": ["NONE"]},
        "host_config": config,
        "use_config_proxy": False,
    }


def with_open_box_defaults(spec: BoxSpec, image: Mapping[str, Any]) -> BoxSpec:
    """Returns `spec` with values for the fields `user` and `workspace` of its `OpenBox`, if they were empty.
    Returns `spec` itself if the box is not an open box.

    `image` is the settings of the box's image (`Config` in the container engine's description). With
    `OpenBox.keep`, the values come from `image`, and values in `image` also replace air's default values of
    environment variables. Without `OpenBox.keep`, the values are air's defaults.
    """
    if spec.open is None:
        return spec
    if not spec.open.keep:
        names = {
            "user": spec.open.user or open_box.USER,
            "workspace": spec.open.workspace or open_box.WORKSPACE,
        }
        return spec.model_copy(update={"open": spec.open.model_copy(update=names)})
    user = spec.open.user or image.get("User") or "0"
    workspace = spec.open.workspace or posixpath.join("/", image.get("WorkingDir") or "")
    workspace = posixpath.normpath(workspace)
    names = {"user": "0" if user == "root" else user, "workspace": workspace}
    of_image = dict(row.split("=", 1) for row in image.get("Env") or [] if "=" in row)
    env = {name: of_image[name] for name in base_env(spec) if name in of_image} | spec.env
    return spec.model_copy(update={"open": spec.open.model_copy(update=names), "env": env})


def rlimits(spec: BoxSpec) -> list[tuple[int, int]]:
    """Returns the resource limits that each command in a container gets in addition to the limits that it
    inherits from the guest (air's program that starts the commands). They are pairs (a constant `RLIMIT_…` of
    the module `resource`, limit). Only a box with `OpenBox.keep` has such a limit: the maximum size of a file
    in bytes."""
    if not (spec.open and spec.open.keep):
        return []
    return [(resource.RLIMIT_FSIZE, spec.limits.disk_mb * MIB)]


def commands_user(spec: BoxSpec) -> int:
    """Returns the user id of the commands of a box that is not an open box (a container that its commands may
    use as a whole). This user also owns the box's writable folders."""
    return 0 if spec.second_user else INSIDE_UID


def _user_and_workspace(spec: BoxSpec) -> tuple[str, str]:
    """Returns a pair: the user who runs a box's commands, and the path of the box's workspace. The user is
    `uid:gid`; in an open box a name or `uid`."""
    if spec.open is not None:
        return spec.open.user, spec.open.workspace
    uid = commands_user(spec)
    return f"{uid}:{uid}", WORKSPACE


def inodes(size: int) -> int:
    """Returns the maximum number of files in a writable folder of `size` MiB."""
    return max(1024, size * _INODES_PER_MIB)


def _environment(spec: BoxSpec, gpus: GpuLease) -> dict[str, str]:
    second = {SECOND_UID_ENV: str(SECOND_UID)} if spec.second_user else {}
    # If NVIDIA's runtime is the default, an image could request all GPUs by itself.
    none = {} if gpus.gpus else {"NVIDIA_VISIBLE_DEVICES": "void"}
    return {"HOME": home(spec)} | second | none


def _devices(gpus: GpuLease) -> list[Any] | None:
    """Returns Docker's device request for exactly the GPUs of the lease `gpus` (the right to use these GPUs),
    or None if the lease has no GPUs. In the container, CUDA numbers the GPUs from 0."""
    if not gpus.gpus:
        return None
    capabilities = [["gpu", "compute", "utility"]]
    ids = list(gpus.uuids)
    return [docker.types.DeviceRequest(driver="nvidia", device_ids=ids, capabilities=capabilities)]


def _tmpfs(spec: BoxSpec) -> dict[str, str]:
    disk = spec.limits.disk_mb
    user = commands_user(spec)

    def options(size: int, mode: str) -> str:
        limits = f"size={size}m,nr_inodes={inodes(size)}"
        return f"rw,exec,nosuid,nodev,{limits},uid={user},gid={user},mode={mode}"

    closed = "0700" if spec.second_user else "0755"
    mounts: dict[str, str] = {}
    if not (spec.open and spec.open.keep):
        mounts = {home(spec): options(disk, "0755"), "/tmp": options(TMP_MB, "1777")}
    mounts["/dev/shm"] = options(
        spec.limits.shm_mb, "1777"
    )  # otherwise no engine limits the number of files
    return mounts | {folder: options(disk, closed) for folder in folders(spec)[1:]}
