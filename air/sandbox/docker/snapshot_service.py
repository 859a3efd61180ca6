"""Snapshots of containers, by one helper container (the keeper) per process while it is needed.

The keeper is a container of its own, in the host's process namespace and with SYS_ADMIN, since it
mounts in the namespaces of other containers; see `air.sandbox.guest.snapshots`. It never runs or
reads an agent's files, and it ends with this process like a box: its stream closes.
A keeper belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import secrets
import weakref
from typing import Any, NamedTuple

from air.errors import BoxDiedError, BoxFileError
from air.sandbox.contract.box import WORKSPACE, Snapshot
from air.sandbox.docker import helper
from air.sandbox.docker.container_spec import inodes
from air.sandbox.docker.container_stream import Attached
from air.sandbox.wire.connection import Connection
from air.sandbox.wire.guest_box import START_SECONDS

PROGRAM = ("frames", "snapshots")
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
"""For mounts in another namespace; for access to a guest, which is not dumpable; and (the last five) for
what an overlay does in the name of the process that mounted it, after it has checked the caller."""
_LIFE_SECONDS = 30 * 86_400.0


class Tenant(NamedTuple):
    """A box that the keeper mounts in."""

    id: str
    """The box's own id."""
    container: str
    """The engine's id of its container; the keeper checks the mount namespace against it."""
    pid: int
    """Its first process, as the engine's host sees it."""

    @property
    def place(self) -> dict[str, Any]:
        """The place of its workspace, for a request to the keeper."""
        return {"pid": self.pid, "container": self.container, "path": WORKSPACE}


class Keeper:
    """Keeps frozen workspaces, and mounts copies of them over the workspaces of boxes.

    `hold` returns it; every holder calls `release`, and the last one ends it.
    """

    def __init__(self, attached: Attached, connection: Connection) -> None:
        self._attached, self._connection = attached, connection
        self._holders = 0

    @property
    def alive(self) -> bool:
        """Whether its connection is open."""
        return not self._connection.reason

    def again(self) -> Keeper:
        """The same keeper for one more holder."""
        self._holders += 1
        return self

    async def release(self) -> None:
        """Gives it back; it ends with its last holder."""
        self._holders -= 1
        if not self._holders:
            await self._attached.close()

    async def take(self, box: Tenant) -> KeptSnapshot:
        """Keeps the workspace of a frozen box; the snapshot becomes the holder in the caller's place."""
        name = f"snapshot-{secrets.token_hex(6)}"
        try:
            await self._ask({"op": "take", "name": name, "box": box.id, **box.place})
        except BaseException:  # cancellation too: it may have been taken all the same
            await self.drop(name)
            raise
        return KeptSnapshot(name, self)

    async def fork(self, box: Tenant, snapshot: KeptSnapshot, *, disk_mb: int) -> None:
        """Mounts a copy of a snapshot over the workspace of a box, until `drop`."""
        room = {"disk_mb": disk_mb, "inodes": inodes(disk_mb)}
        request = {"op": "fork", "name": box.id, "of": snapshot.id, **box.place, **room}
        await self._ask(request)

    async def drop(self, name: str) -> None:
        """Forgets a snapshot, or the fork of a box; harmless if there is none, or if the keeper is gone."""
        if self.alive:
            await self._ask({"op": "drop", "name": name})

    async def _ask(self, request: dict[str, Any]) -> None:
        try:
            await self._connection.request(request)
        except BoxFileError as error:
            raise BoxDiedError(f"a snapshot failed: {error}") from error


class KeptSnapshot(Snapshot):
    """A frozen workspace that a keeper holds."""

    def __init__(self, name: str, keeper: Keeper) -> None:
        self.id, self.keeper = name, keeper
        self._closed = False

    async def close(self) -> None:
        """Drops the workspace and releases the keeper; see `Snapshot.close`."""
        if not self._closed:
            self._closed = True
            await self.keeper.drop(self.id)
            await self.keeper.release()


async def hold(run: str) -> Keeper:
    """This event loop's keeper, started if there is none; the caller must `release` it.

    Raises:
        BoxStartError: it did not start, for example because the engine allows no privileged container.
    """
    loop = asyncio.get_running_loop()
    lock = _LOCKS.setdefault(loop, asyncio.Lock())
    async with lock:
        keeper = _KEEPERS.get(loop)
        if keeper is None or not keeper.alive:
            keeper = _KEEPERS[loop] = await _start(run)
        return keeper.again()


_KEEPERS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Keeper] = weakref.WeakKeyDictionary()
_LOCKS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]
_LOCKS = weakref.WeakKeyDictionary()


async def _start(run: str) -> Keeper:
    name = f"air-keeper-{secrets.token_hex(4)}"
    host: dict[str, Any] = {
        "cap_add": CAPABILITIES,
        "security_opt": ["seccomp=unconfined", "apparmor=unconfined"],
        "pid_mode": "host",
        "tmpfs": {"/k": "size=16m,mode=0700"},
    }
    attached, connection = await helper.start(
        name, run, PROGRAM, ready=START_SECONDS, life=_LIFE_SECONDS, **host
    )
    return Keeper(attached, connection)
