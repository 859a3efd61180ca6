"""Takes and restores snapshots (frozen workspaces) of containers by requests to a helper container
(`air-keeper-…`).

The helper container stores frozen workspaces, and mounts copies of them into boxes
(`air.sandbox.guest.snapshot_keeper`). For this it has the capability SYS_ADMIN and sees the host's processes.
It never runs or reads an agent's files. Each event loop has at most one such helper container, which lives as
long as a snapshot or a box needs it.
"""

from __future__ import annotations

import asyncio
import secrets
import weakref
from typing import Any, NamedTuple

from air.errors import BoxDiedError, BoxFileError
from air.sandbox.contract.box import Snapshot
from air.sandbox.docker import helper_container
from air.sandbox.docker.container_spec import inodes
from air.sandbox.docker.container_stream import AttachedContainer
from air.sandbox.wire.connection import Connection
from air.sandbox.wire.guest_box import START_SECONDS

PROGRAM = ("frames", "snapshot_keeper")
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
"""The Linux capabilities of the helper container that stores snapshots. SYS_ADMIN and SYS_CHROOT allow mounts
in other mount namespaces. SYS_PTRACE allows access to the folders in /proc of guests (air's programs in the
boxes), which are closed to other processes. The others are for overlay file systems, which act with the
rights of the process that mounted them."""
_LIFE_SECONDS = 30 * 86_400.0


class BoxLocation(NamedTuple):
    """Tells the helper container that stores snapshots where to find a box's workspace."""

    id: str
    """The id of the box."""
    container: str
    """The container engine's id of the box's container. The helper container checks that the process of the
    field `pid` belongs to it."""
    pid: int
    """The process id of the box's first process on the container engine's host."""
    path: str
    """The path of the workspace in the box."""

    @property
    def place(self) -> dict[str, Any]:
        """The part of a request that tells the helper container where the box's workspace is: a dict with the
        keys `pid`, `container` and `path`."""
        return {"pid": self.pid, "container": self.container, "path": self.path}


class SnapshotHelper:
    """The helper container (a container in which no agent acts) that stores frozen workspaces and mounts
    copies of them into boxes.

    It counts its users, which are snapshots and boxes: `hold` and `hold_again` add one, `release` subtracts
    one. The container is removed when no user is left.
    """

    def __init__(self, attached: AttachedContainer, connection: Connection) -> None:
        self._attached, self._connection = attached, connection
        self._holders = 0

    @property
    def alive(self) -> bool:
        """Whether the connection to the helper container is open."""
        return not self._connection.reason

    def hold_again(self) -> SnapshotHelper:
        """Counts one more user of this helper container, and returns this object. The new user must call
        `release` later."""
        self._holders += 1
        return self

    async def release(self) -> None:
        """Subtracts one from the number of users of this helper container. Removes the container if no user
        is left."""
        self._holders -= 1
        if not self._holders:
            await self._attached.close()

    async def take(self, box: BoxLocation) -> ContainerSnapshot:
        """Stores the workspace of a box as a snapshot, and returns the snapshot. No process may run in the
        box any more.

        The caller must be counted as a user of this helper container. On success, the snapshot takes over
        this count: closing the snapshot calls `release`, so the caller must not. If `take` fails, the caller
        must call `release`.
        """
        name = f"snapshot-{secrets.token_hex(6)}"
        try:
            await self._ask({"op": "take", "name": name, "box": box.id, **box.place})
        except BaseException:  # cancellation too: the helper may have stored the snapshot already
            await self.drop(name)
            raise
        return ContainerSnapshot(name, self)

    async def fork(self, box: BoxLocation, snapshot: ContainerSnapshot, *, disk_mb: int) -> None:
        """Mounts a writable copy of a snapshot over the workspace of a box. The copy exists until `drop` is
        called with the box's id.

        The box may write at most `disk_mb` MiB to the copy.
        """
        room = {"disk_mb": disk_mb, "inodes": inodes(disk_mb)}
        request = {"op": "fork", "name": box.id, "of": snapshot.id, **box.place, **room}
        await self._ask(request)

    async def drop(self, name: str) -> None:
        """Releases the snapshot called `name`, or the writable copy of the box with the id `name`. Does
        nothing if there is no such snapshot or copy."""
        if self.alive:
            await self._ask({"op": "drop", "name": name})

    async def drop_and_release(self, name: str) -> None:
        """Releases the snapshot called `name`, or the writable copy of the box with the id `name`. Then calls
        `release` for one user of this helper container, even if the first step fails."""
        try:
            await self.drop(name)
        finally:
            await self.release()

    async def _ask(self, request: dict[str, Any]) -> None:
        try:
            await self._connection.request(request)
        except BoxFileError as error:
            raise BoxDiedError(f"a snapshot failed: {error}") from error


class ContainerSnapshot(Snapshot):
    """A frozen workspace of a container. A helper container, in which no agent acts, stores it."""

    def __init__(self, name: str, helper: SnapshotHelper) -> None:
        self.id, self.helper = name, helper
        self._closed = False

    async def close(self) -> None:
        """Releases the frozen workspace. The snapshot then no longer counts as a user of the helper
        container, which is removed when it has no users."""
        if not self._closed:
            self._closed = True
            await self.helper.drop_and_release(self.id)


async def hold(run: str) -> SnapshotHelper:
    """Returns the helper container that stores snapshots for the running event loop, and counts the caller as
    its user. Starts the container if it does not run yet.

    `run` is the id of the run of air, for the labels of a new container. The caller must call `release`
    later. Raises BoxStartError if the container does not start, for example because the container engine does
    not grant the capabilities that the container needs.
    """
    loop = asyncio.get_running_loop()
    lock = _LOCKS.setdefault(loop, asyncio.Lock())
    async with lock:
        service = _HELPERS.get(loop)
        if service is None or not service.alive:
            service = _HELPERS[loop] = await _start(run)
        return service.hold_again()


_HELPERS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, SnapshotHelper] = (
    weakref.WeakKeyDictionary()
)
_LOCKS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
    weakref.WeakKeyDictionary()
)


async def _start(run: str) -> SnapshotHelper:
    name = f"air-keeper-{secrets.token_hex(4)}"
    host: dict[str, Any] = {
        "cap_add": CAPABILITIES,
        "security_opt": ["seccomp=unconfined", "apparmor=unconfined"],
        "pid_mode": "host",
        "tmpfs": {"/k": "size=16m,mode=0700"},
    }
    attached, connection = await helper_container.start(
        name, run, PROGRAM, ready=START_SECONDS, life=_LIFE_SECONDS, **host
    )
    return SnapshotHelper(attached, connection)
