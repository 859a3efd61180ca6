"""The Docker box: closed by default, gone with its harness.

The container has no network, no capabilities, no new privileges, a read-only root, one non-root
user, and limits on processes, memory, CPU and every writable folder. Names that `BoxSpec.network`
lists are reached through a proxy that the harness answers (`allow`). The writable folders are
tmpfs: they live in memory, so the container may use `memory_mb` for processes plus the sizes of
these folders, and filling them takes nothing from the processes. Swap is not added.

Its first process is the guest, on the attached stream: when the stream closes, for whatever reason,
the guest ends, and the engine removes the container.

`second_user` boxes run as root with SETUID, SETGID and KILL only; the workspace belongs to root and
is readable by the second user, scratch folders are closed to it.
"""

from __future__ import annotations

from typing import Any

import docker

from air.errors import BoxDiedError, BoxStartError, ConfigError
from air.sandbox.contract import ownership
from air.sandbox.contract.box import SECOND_UID_ENV, WORKSPACE, BoxSpec, Isolation, Snapshot
from air.sandbox.docker import engine, snapshot_service
from air.sandbox.docker.container_stream import Attached, abandon
from air.sandbox.docker.engine_errors import TransientStartError, lacks_python
from air.sandbox.network import egress_proxy
from air.sandbox.pool.gpu_leases import GpuLease
from air.sandbox.wire.connection import interpreter, opening
from air.sandbox.wire.guest_box import (
    BOUNDS,
    SECOND_UID,
    START_SECONDS,
    GuestBox,
    base_env,
    folders,
)

MIB = 1 << 20
TMP_MB = 64
USER = "1000:1000"
_INODES_PER_MIB = 256


class DockerBox(GuestBox):
    """A box that is a container."""

    isolation: Isolation = "container"

    def __init__(self, spec: BoxSpec, run: str, gpus: GpuLease | None = None) -> None:
        super().__init__(spec)
        self._gpus = gpus or GpuLease()
        self._run = run
        self._attached = Attached(self.id)
        self._keeper: snapshot_service.Keeper | None = None

    @classmethod
    async def start(
        cls, spec: BoxSpec, *, run: str = "", gpus: GpuLease | None = None
    ) -> DockerBox:
        """Starts a box; nothing is left of one that does not start, or whose caller is cancelled.

        Of an image without Python it is an `ExecBox`.

        Raises:
            MissingError: no engine answers, or the image is not built.
            EngineAwayError: the engine answered before, and does not now.
            TransientStartError: it failed for another reason that may pass.
            BoxStartError: it failed for good.
        """
        from air.sandbox.docker import without_python
        from air.sandbox.docker.exec_box import ExecBox

        if await without_python.is_known(spec.image):
            return await ExecBox._begin(spec, run, gpus)
        try:
            return await cls._begin(spec, run, gpus)
        except BoxStartError as error:
            if (why := lacks_python(str(error))) is None:
                raise
            await without_python.remember(spec.image, why)
        return await ExecBox._begin(spec, run, gpus)

    @classmethod
    async def _begin(cls, spec: BoxSpec, run: str, gpus: GpuLease | None) -> DockerBox:
        from air.sandbox.docker import limit_check as held

        box = cls(spec, run, gpus)
        try:
            await box._start()
            await held.say_once(box._attached.container)
        except BaseException as error:  # cancellation too: no container is left
            await abandon(box)
            if isinstance(error, engine.FOREIGN) and not isinstance(error, TimeoutError):
                raise engine.translated(error, spec.image) from error
            if isinstance(error, (TimeoutError, BoxDiedError)):
                text = str(error) or f"its guest was not ready within {START_SECONDS:.0f} s"
                raise TransientStartError(f"a box did not start: {text}") from error
            raise
        return box

    async def _start(self) -> None:
        arguments = container(self.spec, self.id, self._run, self._gpus)
        host = arguments["host_config"]
        config = {
            "roots": list(self._folders.items()),
            "remove": None,
            "cgroup": {"memory": host["Memory"], "pids": host["PidsLimit"]},
            "bounds": BOUNDS,
            "rlimits": [],
            "env": (egress_proxy.environment() if self.spec.network else {}) | base_env(self.spec),
        }
        self._connection = await self._attached.start(arguments, opening(config))
        await self._connection.ready(seconds=START_SECONDS)
        if self.spec.network:
            await self.forward(egress_proxy.PORT, egress_proxy.Proxy(self.spec.network).serve)

    async def snapshot(self) -> Snapshot:
        """Freezes the workspace; see `Box.snapshot`. Costs the same for a workspace of any size."""
        await self._freeze()
        held = await snapshot_service.hold(self._run)
        try:
            snapshot = await held.take(self, await self._attached.pid())
        except BaseException:  # cancellation too: nobody else lets go of it
            await held.release()
            raise
        self._end("its workspace is frozen in a snapshot")
        return snapshot

    async def restore(self, snapshot: Snapshot) -> None:
        """Lays a frozen workspace over this box's; see `Box.restore`."""
        if not isinstance(snapshot, snapshot_service.KeptSnapshot):
            raise ConfigError("a container starts only from a snapshot of a container")
        self._keeper = snapshot.keeper.again()
        await self._keeper.fork(self, await self._attached.pid(), snapshot)
        await self._reroot()

    async def _freeze(self) -> None:
        """Kills every process, and lets no further one begin."""
        await self._guest.request({"op": "freeze"})

    async def _reroot(self) -> None:
        """Makes what serves files see that another workspace lies at its place."""
        await self._guest.request({"op": "reroot"})

    async def _close(self) -> None:
        try:
            await self._attached.close()
        finally:
            if self._keeper is not None:
                await self._keeper.drop(self.id)
                await self._keeper.release()


def container(spec: BoxSpec, name: str, run: str, gpus: GpuLease | None = None) -> dict[str, Any]:
    """The arguments of `create_container` for a box of `spec`."""
    gpus = gpus or GpuLease()
    limits, extra = spec.limits, len(spec.scratch)
    memory = (limits.memory_mb + limits.disk_mb * (1 + extra) + TMP_MB + limits.shm_mb) * MIB
    host = engine.client().create_host_config(
        auto_remove=True,
        network_mode="none",
        cap_drop=["ALL"],
        cap_add=["SETUID", "SETGID", "KILL"] if spec.second_user else None,
        security_opt=["no-new-privileges"],
        read_only=True,
        init=False,
        ipc_mode="private",
        # Shared memory of the System V kind would outlive its processes, and count for ever.
        sysctls={"kernel.shm_rmid_forced": "1"},
        pids_limit=limits.pids + 1,
        mem_limit=memory,
        memswap_limit=memory,
        nano_cpus=int(limits.cpus * 1e9),
        shm_size=limits.shm_mb * MIB,
        device_requests=_devices(gpus),
        tmpfs=_tmpfs(spec),
        log_config=engine.no_log(),
    )
    return {
        "image": spec.image,
        "name": name,
        "hostname": "box",
        "user": "0:0" if spec.second_user else USER,
        "entrypoint": interpreter("python3"),
        "command": [],
        "working_dir": WORKSPACE,
        "stdin_open": True,
        "stop_signal": "SIGKILL",  # an engine that ends does not wait for a guest, which ignores SIGTERM
        "environment": _environment(spec, gpus),
        "labels": {
            ownership.RUN_LABEL: run or ownership.run_id(),
            ownership.OWNER_LABEL: ownership.owner(),
            ownership.EXPIRES_LABEL: ownership.expires(limits.seconds),
        }
        | ({ownership.GPU_LABEL: gpus.label} if gpus.gpus else {}),
        "healthcheck": {"test": ["NONE"]},
        "host_config": host,
        "use_config_proxy": False,
    }


def _environment(spec: BoxSpec, gpus: GpuLease) -> dict[str, str]:
    second = {SECOND_UID_ENV: str(SECOND_UID)} if spec.second_user else {}
    # Where NVIDIA's runtime is the default one, an image may ask it for all GPUs by itself.
    none = {} if gpus.gpus else {"NVIDIA_VISIBLE_DEVICES": "void"}
    return {"HOME": WORKSPACE} | second | none


def _devices(gpus: GpuLease) -> list[Any] | None:
    """The request for these very GPUs; inside, CUDA counts them from 0."""
    if not gpus.gpus:
        return None
    capabilities = [["gpu", "compute", "utility"]]
    ids = list(gpus.uuids)
    return [docker.types.DeviceRequest(driver="nvidia", device_ids=ids, capabilities=capabilities)]


def _tmpfs(spec: BoxSpec) -> dict[str, str]:
    disk = spec.limits.disk_mb
    user = 0 if spec.second_user else USER.partition(":")[0]

    def options(size: int, mode: str) -> str:
        limits = f"size={size}m,nr_inodes={inodes(size)}"
        return f"rw,exec,nosuid,nodev,{limits},uid={user},gid={user},mode={mode}"

    closed = "0700" if spec.second_user else "0755"
    mounts = {WORKSPACE: options(disk, "0755"), "/tmp": options(TMP_MB, "1777")}
    return mounts | {folder: options(disk, closed) for folder in folders(spec)[1:]}


def inodes(size: int) -> int:
    """How many files a folder of `size` MiB may hold."""
    return max(1024, size * _INODES_PER_MIB)
