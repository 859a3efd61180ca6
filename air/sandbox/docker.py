"""The Docker box: closed by default, gone with its harness.

The container has no network, no capabilities, no new privileges, a read-only root, one non-root
user, and limits on processes, memory, CPU and every writable folder. The writable folders are
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
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

import docker
import requests
from docker.errors import APIError, DockerException, NotFound

from air.errors import AirError, BoxDiedError
from air.sandbox import cleanup
from air.sandbox.base import SECOND_UID_ENV, WORKSPACE, BoxSpec, Isolation
from air.sandbox.failure import TransientStartError, engine_missing, start_error
from air.sandbox.guestbox import SECOND_UID, START_SECONDS, GuestBox, base_env, folders, to_the_end
from air.sandbox.protocol import Connection, interpreter, opening

MIB = 1 << 20
TMP_MB = 64
REMOVE_SECONDS = 30.0
USER = "1000:1000"
_THREADS = 16
_INODES_PER_MIB = 256
_FOREIGN = (DockerException, requests.RequestException, OSError)
T = TypeVar("T")


class DockerBox(GuestBox):
    """A box that is a container."""

    isolation: Isolation = "container"

    def __init__(self, spec: BoxSpec, run: str) -> None:
        super().__init__(spec)
        self.container = ""
        """The engine's id of the container; empty until it exists."""
        self._run = run
        self._socket: socket.socket | None = None

    @classmethod
    async def start(cls, spec: BoxSpec, *, run: str = "") -> DockerBox:
        """Starts a box; nothing is left of one that does not start, or whose caller is cancelled.

        Raises:
            MissingError: no engine answers, or the image is not built.
            TransientStartError: it failed for a reason that may pass.
            BoxStartError: it failed for good.
        """
        box = cls(spec, run)
        try:
            await box._start()
        except BaseException as error:  # cancellation too: no container is left
            await box.close()
            if isinstance(error, _FOREIGN) and not isinstance(error, TimeoutError):
                raise _translated(error, spec.image) from error
            if isinstance(error, (TimeoutError, BoxDiedError)):
                text = str(error) or f"its guest was not ready within {START_SECONDS:.0f} s"
                raise TransientStartError(f"a box did not start: {text}") from error
            raise
        return box

    async def _start(self) -> None:
        await _in_thread(self._launch)
        assert self._socket is not None
        reader, writer = await asyncio.open_connection(sock=self._socket, limit=MIB)
        self._connection = Connection(reader, writer, stderr=None, name=self.id)
        await self._connection.ready(seconds=START_SECONDS)

    def _launch(self) -> None:
        """Creates, attaches, starts, speaks; what exists already is known to `close` if a step fails.

        The guest hears its first word from this thread: its patience is shorter than what an event
        loop may be busy for.
        """
        engine = client()
        created = engine.create_container(**container(self.spec, self.id, self._run))
        self.container = created["Id"]
        params = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
        attached = engine.attach_socket(self.container, params=params)
        try:
            self._socket = socket.socket(fileno=os.dup(attached.fileno()))
        finally:
            attached._response.close()
            attached.close()
        config = {
            "roots": list(self._folders.items()),
            "remove": None,
            "cgroup": True,
            "rlimits": [],
            "env": base_env(self.spec),
        }
        engine.start(self.container)
        self._socket.settimeout(START_SECONDS)
        self._socket.sendall(opening(config))
        self._socket.setblocking(False)

    async def _close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
        elif self._socket is not None:
            self._socket.close()
        if self.container:
            try:
                await _in_thread(lambda: remove(self.container))
            except _FOREIGN as error:
                raise BoxDiedError(f"box {self.id} could not be removed: {error}") from error


def container(spec: BoxSpec, name: str, run: str) -> dict[str, Any]:
    """The arguments of `create_container` for a box of `spec`."""
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
        tmpfs=_tmpfs(spec),
        ulimits=[
            docker.types.Ulimit(name="core", soft=0, hard=0),
            docker.types.Ulimit(name="nofile", soft=4096, hard=4096),
        ],
        log_config=docker.types.LogConfig(type="none"),
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
        "environment": _environment(spec),
        "labels": {
            cleanup.RUN_LABEL: run or cleanup.run_id(),
            cleanup.OWNER_LABEL: cleanup.owner(),
            cleanup.EXPIRES_LABEL: cleanup.expires(limits.seconds),
        },
        "healthcheck": {"test": ["NONE"]},
        "host_config": host,
        "use_config_proxy": False,
    }


def _environment(spec: BoxSpec) -> dict[str, str]:
    second = {SECOND_UID_ENV: str(SECOND_UID)} if spec.second_user else {}
    return {"HOME": WORKSPACE} | second


def _tmpfs(spec: BoxSpec) -> dict[str, str]:
    disk = spec.limits.disk_mb
    user = 0 if spec.second_user else USER.partition(":")[0]

    def options(size: int, mode: str) -> str:
        inodes = max(1024, size * _INODES_PER_MIB)
        limits = f"size={size}m,nr_inodes={inodes}"
        return f"rw,exec,nosuid,nodev,{limits},uid={user},gid={user},mode={mode}"

    closed = "0700" if spec.second_user else "0755"
    mounts = {WORKSPACE: options(disk, "0755"), "/tmp": options(TMP_MB, "1777")}
    return mounts | {folder: options(disk, closed) for folder in folders(spec)[1:]}


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


def boxes() -> list[dict[str, Any]]:
    """Every container that carries our labels, in whatever state: the engine's summaries.

    Raises:
        MissingError: no engine answers.
        BoxStartError: the engine failed.
    """
    try:
        found: list[dict[str, Any]] = client().containers(
            all=True, filters={"label": [cleanup.OWNER_LABEL, cleanup.EXPIRES_LABEL]}
        )
    except _FOREIGN as error:
        raise _translated(error, "") from error
    return found


def remove_left_behind() -> list[str]:
    """Removes containers of ours that are expired or whose owner is dead; returns their names.

    Raises:
        MissingError: no engine answers.
        BoxStartError: the engine failed.
    """
    removed = []
    for found in boxes():
        if not cleanup.is_left_behind(found["Labels"], now=time.time()):
            continue
        try:
            remove(found["Id"])
        except _FOREIGN as error:
            raise _translated(error, found["Image"]) from error
        removed.append(found["Names"][0].lstrip("/"))
    return removed


def client() -> docker.APIClient:
    """The connection to the engine that `DOCKER_HOST` names; one for each process."""
    with _LOCK:
        return _client(os.getpid())


@cache
def _client(_pid: int) -> docker.APIClient:
    settings = docker.utils.kwargs_from_env()
    return docker.APIClient(version="auto", timeout=60, max_pool_size=_THREADS, **settings)


_LOCK = threading.Lock()


@cache
def _threads(_pid: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="air-docker")


async def _in_thread(work: Callable[[], T]) -> T:
    """Runs blocking work to its end, whatever happens to the caller."""
    loop = asyncio.get_running_loop()
    return await to_the_end(loop.run_in_executor(_threads(os.getpid()), work))


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
    except _FOREIGN as error:
        return engine_missing(str(error)) or " ".join(str(error).split())[:200]
    return None
