"""GPU leases: a lease is the right of one box (an isolated place for commands, such as a container) to use
certain GPUs. The air processes of all users on this machine respect each other's leases.

A lease consists of file locks, so it ends with the process that holds them. For a box that has a GPU alone,
the process holds the lock `<uuid>.0` exclusively (`<uuid>` is the GPU's UUID). If boxes share the GPU, each
has a slot (a place on the GPU) with the number 1, 2, …: its process holds `<uuid>.0` shared and
`<uuid>.<slot>` exclusively. A container may live longer than the process that started it. Then no lock shows
that the container uses a GPU. Therefore a GPU also counts as occupied if the label `air.gpu` of an existing
container names it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from air.errors import ConfigError, MissingError
from air.sandbox.contract import ownership
from air.sandbox.pool import file_locks
from air.sandbox.pool.gpus import Gpu, listed

WAITING = "gpu.waiting"
"""The name of the file lock that each process holds shared while it waits for GPUs, so that other processes
can see that somebody waits."""
_TURN = "gpu.turn"


class GpuLease:
    """The right to use some GPUs until `release` is called. Releasing twice is harmless."""

    def __init__(self) -> None:
        self._held: dict[Gpu, tuple[file_locks.Lock, ...]] = {}

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The leased GPUs, in the order in which they were taken."""
        return tuple(self._held)

    @property
    def uuids(self) -> tuple[str, ...]:
        """The UUIDs of the leased GPUs."""
        return tuple(gpu.uuid for gpu in self._held)

    @property
    def label(self) -> str:
        """The value of the label `air.gpu` for a container that uses these GPUs: `<uuid>.<slot>,…`. The boxes
        that share a GPU have slots (places) with the numbers 1, 2, …; slot 0 means the whole GPU."""
        return ",".join(held[0].name for held in self._held.values())

    @property
    def fds(self) -> tuple[int, ...]:
        """The file descriptors of the lease's file locks. A child process that inherits them also holds the
        lease."""
        return tuple(lock.fd for held in self._held.values() for lock in held)

    def add(self, gpu: Gpu, locks: tuple[file_locks.Lock, ...]) -> None:
        """Adds a GPU to the lease. `locks` are the file locks that were taken for this GPU."""
        self._held[gpu] = locks

    def release(self, uuids: Iterable[str] | None = None) -> None:
        """Gives back the GPUs with these UUIDs, or all GPUs if `uuids` is None."""
        only = None if uuids is None else set(uuids)
        for gpu in [gpu for gpu in self._held if only is None or gpu.uuid in only]:
            for lock in self._held.pop(gpu):
                lock.release()


class GpuPool:
    """A pool of GPUs for boxes. It gives each GPU to one box, or to at most `slots_per_gpu` boxes at once.

    Boxes that share a GPU also share all its memory. Requests of one process are served in order; requests
    of several processes in random order. Only one request on this machine at a time may keep some GPUs while
    it waits for more, so that two requests never wait for each other's GPUs. After `say_after` seconds of
    waiting, the log names the processes and containers that use the GPUs. `run` is the id of the run of air
    for which GPUs are leased; logs of other processes name it. Empty means the run of this process.
    """

    def __init__(
        self,
        gpus: Sequence[Gpu],
        *,
        slots_per_gpu: int = 1,
        run: str = "",
        say_after: float = file_locks.SAY_SECONDS,
    ) -> None:
        if slots_per_gpu < 1:
            raise ValueError("slots_per_gpu must be at least 1")
        self.gpus = tuple(gpus)
        self._slots = (0,) if slots_per_gpu == 1 else tuple(range(1, slots_per_gpu + 1))
        self._run, self._say_after = run, say_after
        self._line = asyncio.Lock()
        self._occupied: dict[str, str] = {}

    def check(self, count: int) -> None:
        """Raises ConfigError if this pool has fewer than `count` GPUs, because a box would then wait for
        ever."""
        if count > len(self.gpus):
            raise ConfigError(
                f"a box needs {count} GPUs, and the run has {len(self.gpus)}: {listed(self.gpus)}",
                where="gpus",
                remedy="name more, or take the task out",
            )

    async def take(self, count: int, *, containers: bool = False) -> GpuLease:
        """Waits for `count` GPUs and returns a lease of them, on which the caller must call `release`.

        `containers` says whether the GPUs are for a container. Then the container engine must answer, because
        only the engine knows which other containers use GPUs.

        Raises:
            ConfigError: the pool has fewer GPUs, or the locks cannot be used.
            MissingError: no container engine answers, and `containers` is true.
            BoxStartError: the container engine failed to list its containers.
        """
        self.check(count)
        lease = GpuLease()
        turn: file_locks.Lock | None = None

        async def attempt() -> GpuLease | None:
            nonlocal turn
            if count > 1 and turn is None:  # several GPUs are rarely free at once
                turn = file_locks.acquire(_TURN, run=self._run)
            return await self._fill(lease, count, containers, keep=turn is not None)

        try:
            async with self._line:
                return await file_locks.until(
                    attempt,
                    marker=WAITING,
                    what=lambda: f"{count} of the GPUs {listed(self.gpus)}: {self._held_by()}",
                    say_after=self._say_after,
                )
        except BaseException:  # cancellation too: give its GPUs back
            lease.release()
            raise
        finally:
            if turn is not None:
                turn.release()

    async def try_take(self, count: int, *, containers: bool = False) -> GpuLease | None:
        """Returns a lease (the right to use GPUs) of `count` GPUs without waiting, or None if too few GPUs
        are free or another request of this process waits for GPUs. `containers` says whether the GPUs are for
        a container (see `take`, which also lists the errors)."""
        self.check(count)
        if self._line.locked():
            return None
        lease = GpuLease()
        try:
            return await self._fill(lease, count, containers, keep=False)
        except BaseException:  # cancellation too: give its GPUs back
            lease.release()
            raise

    async def _fill(
        self, lease: GpuLease, count: int, containers: bool, *, keep: bool
    ) -> GpuLease | None:
        """Adds free GPUs to `lease` until it has `count` GPUs, and returns the lease.

        If too few GPUs are free, returns None and gives the added GPUs back; with `keep`, the lease keeps
        them. `containers` says whether the GPUs are for a container (see `take`).
        """
        for slot in self._slots:  # boxes share a GPU only if each GPU already has a box
            for gpu in sorted(self.gpus, key=lambda gpu: gpu.uuid in self._occupied):
                missing = len(lease.gpus) < count and gpu not in lease.gpus
                if missing and (locks := self._lock(gpu, slot)):
                    lease.add(gpu, locks)
        if len(lease.gpus) == count:
            try:
                self._occupied = await asyncio.to_thread(clean_and_find_users, lease.label)
            except MissingError:
                if containers:
                    raise
                self._occupied = {}  # without a container engine, only locks show who uses a GPU
            if not self._occupied:
                return lease
            lease.release(self._occupied)
        if not keep:
            lease.release()
        return None

    def _lock(self, gpu: Gpu, slot: int) -> tuple[file_locks.Lock, ...]:
        if slot == 0:
            lock = file_locks.acquire(f"{gpu.uuid}.0", run=self._run)
            return (lock,) if lock else ()
        shared_lock = file_locks.acquire(f"{gpu.uuid}.0", shared=True)
        if shared_lock is None:
            return ()
        if slot_lock := file_locks.acquire(f"{gpu.uuid}.{slot}", run=self._run):
            return (slot_lock, shared_lock)
        shared_lock.release()
        return ()

    def _held_by(self) -> str:
        rows = [f"{gpu.index} by {holder}" for gpu in self.gpus for holder in holders(gpu).values()]
        rows += [f"{uuid} by {text}" for uuid, text in self._occupied.items()]
        return "; ".join(rows) or "held by nobody now"


def divided(
    gpus: Sequence[Gpu], *, box: int, grader: int, slots_per_gpu: int = 1, where: str = "gpus"
) -> tuple[GpuPool, GpuPool]:
    """Divides GPUs into two pools and returns them: first the pool for agents' boxes, then the pool for
    graders' boxes (in which the agents' work is graded).

    Two pools are needed because an agent's box keeps its GPUs while it waits for the grader. `box` is the
    number of GPUs that an agent's box needs at most, and `grader` that of a grader's box. The graders' pool
    gets exactly `grader` GPUs, the agents' pool the rest. At most `slots_per_gpu` boxes share a GPU. Raises
    ConfigError, which names the setting `where`, if there are fewer than `box + grader` GPUs.
    """
    if box + grader > len(gpus):
        raise ConfigError(
            f"a box needs {box} GPUs, graders {grader}, and the run has {len(gpus)}: {listed(gpus)}",
            where=where,
            remedy="name more, or take the task out",
        )
    count = len(gpus) - grader
    agents = GpuPool(gpus[:count], slots_per_gpu=slots_per_gpu)
    return agents, GpuPool(gpus[count:], slots_per_gpu=slots_per_gpu)


def holders(gpu: Gpu) -> dict[int, file_locks.Holder]:
    """Returns the processes that hold leases of a GPU, as a dict {slot number: process}. Slot 0 is the whole
    GPU; the boxes that share the GPU have the slots 1, 2, …."""
    slots = (name.rpartition(".")[2] for name in file_locks.names(f"{gpu.uuid}."))
    by_slot = {int(s): file_locks.holder(f"{gpu.uuid}.{s}") for s in slots if s.isdecimal()}
    return {slot: held for slot, held in sorted(by_slot.items()) if held is not None}


def users(label: str, containers: Iterable[dict[str, Any]]) -> dict[str, str]:
    """Returns which of a lease's GPUs are already used by `containers`, as a dict {UUID: "container NAME of
    OWNER"}.

    `label` is the lease's `GpuLease.label`. `containers` are descriptions as `engine.containers_of_air`
    returns them. Containers that share a GPU have different slots of it (1, 2, …), so they do not conflict.
    Slot 0 (the whole GPU) conflicts with every slot.
    """
    slots = [_slot(part) for part in label.split(",")]
    conflicts: dict[str, str] = {}
    for container in containers:
        labels = container["Labels"]
        for part in labels.get(ownership.GPU_LABEL, "").split(","):
            uuid, slot = _slot(part)
            if any(u == uuid and (s == slot or "0" in (s, slot)) for u, s in slots):
                name = container["Names"][0].lstrip("/")
                conflicts[uuid] = (
                    f"container {name} of {labels.get(ownership.OWNER_LABEL, 'nobody')}"
                )
    return conflicts


def _slot(part: str) -> tuple[str, str]:
    """Parses `part`, one item `<uuid>.<slot>` of a container's label `air.gpu`. Returns the GPU's UUID and
    the slot number as text: "0" means the whole GPU. A missing number counts as "0"."""
    uuid, _, slot = part.strip().partition(".")
    return uuid, slot or "0"


def clean_and_find_users(label: str) -> dict[str, str]:
    """Returns which GPUs of a lease (the right of a process to use certain GPUs) are still used by existing
    containers, as a dict {GPU's UUID: "container NAME of OWNER"}. `label` is the `GpuLease.label` of the
    lease, which lists its GPUs.

    First removes those containers with GPUs that have expired or whose owner (the process of air that started
    the container) is dead. Blocks the thread. Raises MissingError if no container engine answers,
    BoxStartError if the engine fails.
    """
    from air.sandbox.docker import engine

    engine.remove_left_behind(ownership.GPU_LABEL)
    return users(label, engine.containers_of_air(ownership.GPU_LABEL))
