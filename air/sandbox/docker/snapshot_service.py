"""Snapshots of containers: one keeper per process, as long as somebody needs it.

The keeper is a container of its own, in the host's process namespace and with SYS_ADMIN, since it
mounts in the namespaces of other containers; see `air.sandbox.guest.snapshots`. It never runs or
reads what an agent wrote, and it ends with this process like a box: its stream closes.
A keeper belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import secrets
import weakref
from typing import TYPE_CHECKING, Any

from air.errors import AirError, BoxDiedError, BoxFileError, BoxStartError
from air.sandbox.contract import ownership
from air.sandbox.contract.box import WORKSPACE, Snapshot
from air.sandbox.wire.connection import Connection, interpreter, opening, program
from air.sandbox.wire.guest_box import START_SECONDS

if TYPE_CHECKING:
    from air.sandbox.docker.box import DockerBox
    from air.sandbox.docker.container_stream import Attached

PROGRAM = ("snapshots",)
CAPABILITIES = [
    "SYS_ADMIN",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "MKNOD",
]
"""What it takes to mount in another namespace, to reach a guest, which is not dumpable, and (the last
five) what an overlay does in the name of whoever mounted it, after it has checked the caller."""
_LIFE_SECONDS = 30 * 86_400.0
_MEMORY = 256 << 20


class Keeper:
    """Keeps frozen workspaces, and lays copies of them over those of boxes.

    `hold` gives one; every holder gives it back with `release`, and the last one ends it.
    """

    def __init__(self, attached: Attached, connection: Connection) -> None:
        self._attached, self._connection = attached, connection
        self._holders = 0

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return not self._connection.reason

    def again(self) -> Keeper:
        """The same keeper for one more holder."""
        self._holders += 1
        return self

    async def release(self) -> None:
        """Gives it back; it ends when nobody holds it."""
        self._holders -= 1
        if not self._holders:
            await self._attached.close()

    async def take(self, box: DockerBox, pid: int) -> KeptSnapshot:
        """Keeps the workspace of a box that is frozen; the snapshot takes over the holder's part."""
        name = f"snapshot-{secrets.token_hex(6)}"
        where = {"box": box.id, "pid": pid, "path": WORKSPACE}
        try:
            await self._ask({"op": "take", "name": name, **where})
        except BaseException:  # a cancelled caller: it may have been taken all the same
            await self.drop(name)
            raise
        return KeptSnapshot(name, self)

    async def fork(self, box: DockerBox, pid: int, snapshot: KeptSnapshot) -> None:
        """Lays a copy of a snapshot over the workspace of a box, until `drop`."""
        from air.sandbox.docker import box as docker

        disk = box.spec.limits.disk_mb
        where = {"pid": pid, "path": WORKSPACE, "disk_mb": disk, "inodes": docker.inodes(disk)}
        await self._ask({"op": "fork", "name": box.id, "of": snapshot.id, **where})

    async def drop(self, name: str) -> None:
        """Forgets a snapshot, or the fork of a box; fine where there is none, or no keeper."""
        if self.alive:
            await self._ask({"op": "drop", "name": name})

    async def _ask(self, request: dict[str, Any]) -> None:
        try:
            await self._connection.request(request)
        except BoxFileError as error:
            raise BoxDiedError(f"a snapshot failed: {error}") from error


class KeptSnapshot(Snapshot):
    """A workspace that a keeper holds."""

    def __init__(self, name: str, keeper: Keeper) -> None:
        self.id, self.keeper = name, keeper
        self._closed = False

    async def close(self) -> None:
        """Gives up what it holds; see `Snapshot.close`."""
        if not self._closed:
            self._closed = True
            await self.keeper.drop(self.id)
            await self.keeper.release()


async def hold(run: str) -> Keeper:
    """This event loop's keeper, started if there is none; give it back with `release`.

    Raises:
        BoxStartError: it does not start, because the engine allows no privileged container, say.
    """
    loop = asyncio.get_running_loop()
    lock = _LOCKS.setdefault(loop, asyncio.Lock())
    async with lock:
        found = _KEEPERS.get(loop)
        if found is None or not found.alive:
            found = _KEEPERS[loop] = await _started(run)
        return found.again()


_KEEPERS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Keeper] = weakref.WeakKeyDictionary()
_LOCKS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]
_LOCKS = weakref.WeakKeyDictionary()


async def _started(run: str) -> Keeper:
    from air.sandbox.docker import engine
    from air.sandbox.docker.container_stream import Attached, abandon

    attached = Attached(f"air-keeper-{secrets.token_hex(4)}")
    try:
        arguments = await engine.in_thread(lambda: _container(attached.name, run))
        connection = await attached.start(arguments, opening({}, PROGRAM))
        await connection.ready(seconds=START_SECONDS)
    except BaseException as error:  # cancellation too: no container is left
        await abandon(attached)
        if isinstance(error, (AirError, *engine.FOREIGN)):
            raise BoxStartError(f"what keeps snapshots did not start: {error}") from error
        raise
    return Keeper(attached, connection)


def _container(name: str, run: str) -> dict[str, Any]:
    from air.sandbox.docker import engine

    host = engine.client().create_host_config(
        auto_remove=True,
        network_mode="none",
        cap_drop=["ALL"],
        cap_add=CAPABILITIES,
        security_opt=["seccomp=unconfined", "apparmor=unconfined"],
        pid_mode="host",
        read_only=True,
        mem_limit=_MEMORY,
        memswap_limit=_MEMORY,
        tmpfs={"/k": "size=16m,mode=0700"},
        log_config=engine.no_log(),
    )
    return {
        "image": "air-base",
        "name": name,
        "user": "0:0",
        "entrypoint": interpreter("python3", program(PROGRAM), source=True),
        "command": [],
        "stdin_open": True,
        "stop_signal": "SIGKILL",
        "labels": {
            ownership.RUN_LABEL: run or ownership.run_id(),
            ownership.OWNER_LABEL: ownership.owner(),
            ownership.EXPIRES_LABEL: ownership.expires(_LIFE_SECONDS),
        },
        "healthcheck": {"test": ["NONE"]},
        "host_config": host,
        "use_config_proxy": False,
    }
