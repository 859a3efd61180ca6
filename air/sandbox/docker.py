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

import asyncio
import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

import docker
import requests
from docker.errors import APIError, DockerException, NotFound

from air.errors import AirError, BoxDiedError, BoxStartError, ConfigError
from air.sandbox import allow, cleanup, images, keeper, podman
from air.sandbox.base import SECOND_UID_ENV, WORKSPACE, BoxSpec, Isolation, Snapshot
from air.sandbox.failure import (
    TransientStartError,
    engine_missing,
    lacks_python,
    no_engine,
    start_error,
)
from air.sandbox.guestbox import SECOND_UID, START_SECONDS, GuestBox, base_env, folders, to_the_end
from air.sandbox.leases import GpuLease
from air.sandbox.protocol import Connection, interpreter, opening

MIB = 1 << 20
TMP_MB = 64
REMOVE_SECONDS = 30.0
USER = "1000:1000"
_THREADS = 16
_INODES_PER_MIB = 256
FOREIGN = (DockerException, requests.RequestException, OSError)
_LOG = logging.getLogger(__name__)
T = TypeVar("T")


class DockerBox(GuestBox):
    """A box that is a container."""

    isolation: Isolation = "container"

    def __init__(self, spec: BoxSpec, run: str, gpus: GpuLease | None = None) -> None:
        super().__init__(spec)
        self._gpus = gpus or GpuLease()
        self._run = run
        self._attached = Attached(self.id)
        self._keeper: keeper.Keeper | None = None

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
        from air.sandbox import without_python
        from air.sandbox.execbox import ExecBox

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
        from air.sandbox import held

        box = cls(spec, run, gpus)
        try:
            await box._start()
            await held.say_once(box._attached.container)
        except BaseException as error:  # cancellation too: no container is left
            await abandon(box)
            if isinstance(error, FOREIGN) and not isinstance(error, TimeoutError):
                raise _translated(error, spec.image) from error
            if isinstance(error, (TimeoutError, BoxDiedError)):
                text = str(error) or f"its guest was not ready within {START_SECONDS:.0f} s"
                raise TransientStartError(f"a box did not start: {text}") from error
            raise
        return box

    async def _start(self) -> None:
        config = {
            "roots": list(self._folders.items()),
            "remove": None,
            "cgroup": True,
            "rlimits": [],
            "env": (allow.environment() if self.spec.network else {}) | base_env(self.spec),
        }
        arguments = container(self.spec, self.id, self._run, self._gpus)
        self._connection = await self._attached.start(arguments, opening(config))
        await self._connection.ready(seconds=START_SECONDS)
        if self.spec.network:
            await self.forward(allow.PORT, allow.Proxy(self.spec.network).serve)

    async def snapshot(self) -> Snapshot:
        """Freezes the workspace; see `Box.snapshot`. Costs the same for a workspace of any size."""
        await self._freeze()
        held = await keeper.hold(self._run)
        try:
            snapshot = await held.take(self, await self._attached.pid())
        except BaseException:
            await held.release()
            raise
        self._end("its workspace is frozen in a snapshot")
        return snapshot

    async def restore(self, snapshot: Snapshot) -> None:
        """Lays a frozen workspace over this box's; see `Box.restore`."""
        if not isinstance(snapshot, keeper.KeptSnapshot):
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


class Attached:
    """A container whose first process is a program of ours that reads the attached stream."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.container = ""
        """The engine's id of the container, or its name; empty until it may exist."""
        self._socket: socket.socket | None = None
        self._connection: Connection | None = None
        self._pid = 0

    async def start(self, arguments: dict[str, Any], first: bytes) -> Connection:
        """Starts the container and speaks to it; whatever it raises, `close` takes all away.

        Args:
            arguments: of `create_container`.
            first: what the program is told first.
        """
        await in_thread(lambda: self._launch(arguments, first))
        assert self._socket is not None
        reader, writer = await asyncio.open_connection(sock=self._socket, limit=MIB)
        self._connection = Connection(reader, writer, stderr=None, name=self.name)
        return self._connection

    def _launch(self, arguments: dict[str, Any], first: bytes) -> None:
        """Creates, attaches, starts, speaks. The program hears its first word from this thread: its
        patience is shorter than what an event loop may be busy for."""
        engine = client()
        try:
            self.container = create(arguments)
        except requests.RequestException as error:
            if not engine_missing(str(error)):  # it was asked, and only its answer is lost
                self.container = self.name
            raise
        params = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
        self._socket = taken(engine.attach_socket(self.container, params=params))
        engine.start(self.container)
        self._socket.settimeout(START_SECONDS)
        self._socket.sendall(first)
        self._socket.setblocking(False)

    async def pid(self) -> int:
        """The process id of its first process, as the engine's host sees it."""
        if not self._pid:
            with translating(self.name):
                found = await in_thread(lambda: client().inspect_container(self.container))
            self._pid = int(found["State"]["Pid"])
        return self._pid

    async def close(self) -> None:
        """Ends the container, and returns when it is gone.

        Raises:
            BoxDiedError: it could not be removed.
        """
        if self._connection is not None:
            await self._connection.close()
        elif self._socket is not None:
            self._socket.close()
        if self.container:
            try:
                await in_thread(lambda: remove(self.container))
            except FOREIGN as error:
                raise BoxDiedError(f"box {self.name} could not be removed: {error}") from error


async def abandon(what: DockerBox | Attached) -> None:
    """Closes what did not start: why it did not matters more than what is left, if anything is."""
    try:
        await what.close()
    except BoxDiedError as left:
        _LOG.warning("%s", left)


def taken(stream: Any) -> socket.socket:
    """The socket under a stream of the engine's client, which is closed; the socket is not."""
    try:
        return socket.socket(fileno=os.dup(stream.fileno()))
    finally:
        stream._response.close()
        stream.close()


def create(arguments: dict[str, Any]) -> str:
    """Creates a container, as this engine has to be told; returns its id. Blocks."""
    told = podman.adapted(arguments) if is_podman() else arguments
    return str(client().create_container(**told)["Id"])


def container(spec: BoxSpec, name: str, run: str, gpus: GpuLease | None = None) -> dict[str, Any]:
    """The arguments of `create_container` for a box of `spec`."""
    gpus = gpus or GpuLease()
    limits, extra = spec.limits, len(spec.scratch)
    memory = (limits.memory_mb + limits.disk_mb * (1 + extra) + TMP_MB + limits.shm_mb) * MIB
    host = client().create_host_config(
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
        ulimits=[
            docker.types.Ulimit(name="core", soft=0, hard=0),
            docker.types.Ulimit(name="nofile", soft=4096, hard=4096),
        ],
        log_config=no_log(),
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
            cleanup.RUN_LABEL: run or cleanup.run_id(),
            cleanup.OWNER_LABEL: cleanup.owner(),
            cleanup.EXPIRES_LABEL: cleanup.expires(limits.seconds),
        }
        | ({cleanup.GPU_LABEL: gpus.label} if gpus.gpus else {}),
        "healthcheck": {"test": ["NONE"]},
        "host_config": host,
        "use_config_proxy": False,
    }


def no_log() -> docker.types.LogConfig:
    """The engine keeps no copy of a stream that carries frames."""
    return docker.types.LogConfig(type="none")


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


def remove(name: str) -> None:
    """Kills and removes a container, and returns when it is gone; one that is gone already is fine.

    Blocks. Raises the engine's error if it is still there after `REMOVE_SECONDS`.
    """
    engine, give_up = client(), time.monotonic() + REMOVE_SECONDS
    while True:
        try:
            engine.remove_container(name, force=True, v=True)
            return
        except NotFound:
            return
        except APIError:  # most often: it is being removed because its guest has ended
            if time.monotonic() > give_up:
                raise
        time.sleep(0.02)


def boxes(*labels: str) -> list[dict[str, Any]]:
    """Every container that carries our labels, in whatever state: the engine's summaries.

    One without a name is left out: it is gone, and an engine that was killed meanwhile lists it still.

    Args:
        labels: the labels that it must carry, instead of those that every box has.

    Raises:
        MissingError: no engine answers.
        BoxStartError: the engine failed.
    """
    try:
        found: list[dict[str, Any]] = client().containers(
            all=True,
            filters={"label": list(labels) or [cleanup.OWNER_LABEL, cleanup.EXPIRES_LABEL]},
        )
    except FOREIGN as error:
        raise _translated(error, "") from error
    return [box for box in found if box["Names"]]


def remove_left_behind(*labels: str) -> list[str]:
    """Removes containers of ours that are expired or whose owner is dead; returns their names.

    Args:
        labels: as `boxes`.

    Raises:
        MissingError: no engine answers.
        BoxStartError: the engine failed.
    """
    removed = []
    for found in boxes(*labels):
        if not cleanup.is_left_behind(found["Labels"], now=time.time()):
            continue
        try:
            remove(found["Id"])
        except FOREIGN as error:
            raise _translated(error, found["Image"]) from error
        removed.append(found["Names"][0].lstrip("/"))
    return removed


async def image_id(image: str) -> str:
    """The engine's digest of an image that is here, whatever its tag meant before.

    Raises:
        MissingError: no engine answers, or the image is not built.
        TransientStartError: the engine failed for a reason that may pass.
    """
    try:  # not behind the starts and removals that keep the engine's own threads busy
        return str((await asyncio.to_thread(lambda: client().inspect_image(image)))["Id"])
    except FOREIGN as error:
        raise _translated(error, image) from error


def client() -> docker.APIClient:
    """The connection to the engine that `DOCKER_HOST` names; one for each process and engine.

    Raises:
        MissingError: none answers. Once one has, its failures are those of each request.
    """
    with _LOCK:
        try:
            return _client(os.getpid(), os.environ.get("DOCKER_HOST", ""))
        except FOREIGN as error:
            if engine_missing(str(error)):
                raise no_engine(str(error)) from error
            raise


def is_podman() -> bool:
    """Whether the engine is Podman, behind its Docker-compatible socket."""
    return _is_podman(client())


@cache
def _is_podman(engine: docker.APIClient) -> bool:
    parts = engine.version().get("Components") or []
    return any("podman" in str(part.get("Name")).lower() for part in parts)


@cache
def _client(_pid: int, _host: str) -> docker.APIClient:
    images.knock()
    settings = docker.utils.kwargs_from_env()
    return docker.APIClient(version="auto", timeout=60, max_pool_size=_THREADS, **settings)


_LOCK = threading.Lock()


@cache
def _threads(_pid: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="air-docker")


async def in_thread(work: Callable[[], T]) -> T:
    """Runs blocking work of the engine to its end, whatever happens to the caller."""
    loop = asyncio.get_running_loop()
    return await to_the_end(loop.run_in_executor(_threads(os.getpid()), work))


@contextlib.contextmanager
def translating(name: str) -> Iterator[None]:
    """Turns a failure of the engine about a live box into `BoxDiedError`."""
    try:
        yield
    except FOREIGN as error:
        raise BoxDiedError(f"box {name}: its engine failed: {error}") from error


def refused(error: BaseException) -> str | None:
    """Why a container that is alive could start no further process; None for any other error."""
    text = error.explanation if isinstance(error, APIError) else ""
    return str(text) if "oci runtime" in str(text).lower() else None


def _translated(error: Exception, image: str) -> AirError:
    status = error.status_code if isinstance(error, APIError) else None
    text = str(error.explanation if isinstance(error, APIError) else error)
    return start_error(status, text, image)


def unusable() -> str | None:
    """Why Docker cannot be used here, as half a line; None where it can. Blocks up to 10 s."""
    settings = docker.utils.kwargs_from_env()
    try:
        with contextlib.closing(docker.APIClient(version="auto", timeout=10, **settings)) as engine:
            engine.ping()
    except FOREIGN as error:
        return engine_missing(str(error)) or " ".join(str(error).split())[:200]
    return None
