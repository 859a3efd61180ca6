"""The right to use some GPUs for one box, held across the processes and users of this machine.

A lease is a set of file locks (`air.sandbox.pool.file_locks`), so it ends with its process. A GPU's lock is
`<uuid>.0`. Processes that share it on purpose (`slots_per_gpu` > 1) hold that lock together, and each holds
`<uuid>.<slot>`, counted from 1, alone. So a box that wants a GPU alone never gets a shared one, even if two
processes have different settings.

Locks do not show a container that outlives its killed owner, nor one whose owner has another lock folder:
a GPU is lent only if no container of the engine carries its label (`air.gpu`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from air.errors import ConfigError, MissingError
from air.sandbox.contract import ownership
from air.sandbox.pool import file_locks
from air.sandbox.pool.gpus import Gpu, Wanted, listed, plan

WAITING = "gpu.waiting"
"""The lock that all waiters for GPUs hold together."""
_TURN = "gpu.turn"


class GpuLease:
    """The right to some GPUs until `release`; releasing twice is harmless."""

    def __init__(self) -> None:
        self._held: dict[Gpu, tuple[file_locks.Lock, ...]] = {}

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs, in the order of the pool."""
        return tuple(self._held)

    @property
    def uuids(self) -> tuple[str, ...]:
        """Their UUIDs."""
        return tuple(gpu.uuid for gpu in self._held)

    @property
    def label(self) -> str:
        """The value of the label `air.gpu` of a container that uses them: `<uuid>.<slot>,…`."""
        return ",".join(held[0].name for held in self._held.values())

    @property
    def fds(self) -> tuple[int, ...]:
        """The locks' file descriptors: a process that inherits them holds the GPUs too, until it ends."""
        return tuple(lock.fd for held in self._held.values() for lock in held)

    def add(self, gpu: Gpu, held: tuple[file_locks.Lock, ...]) -> None:
        """Takes over the locks of one more GPU."""
        self._held[gpu] = held

    def release(self, uuids: Iterable[str] | None = None) -> None:
        """Gives back all GPUs, or only those named."""
        only = None if uuids is None else set(uuids)
        for gpu in [gpu for gpu in self._held if only is None or gpu.uuid in only]:
            for lock in self._held.pop(gpu):
                lock.release()


class GpuPool:
    """Lends GPUs, each exclusively or to `slots_per_gpu` at once.

    Requests are served in order within this process. Across processes the order is random, except that
    one request for several GPUs at a time keeps the GPUs it has while it waits for more.

    Args:
        gpus: the GPUs to lend.
        slots_per_gpu: how many boxes may share a GPU; its memory is not divided among them.
        run: the run that is named as the holder; this process's own if empty.
        say_after: seconds of waiting after which the log names the holders.
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

    @classmethod
    def open(cls, wanted: Wanted, *, slots_per_gpu: int = 1, run: str = "") -> GpuPool:
        """A pool of the GPUs of this machine that `wanted` means; see `gpus.plan`, also for errors."""
        return cls(plan(wanted), slots_per_gpu=slots_per_gpu, run=run)

    def check(self, count: int) -> None:
        """Checks that a box with `count` GPUs can be served at all.

        Raises:
            ConfigError: the pool has fewer.
        """
        if count > len(self.gpus):
            raise ConfigError(
                f"a box needs {count} GPUs, and the run has {len(self.gpus)}: {listed(self.gpus)}",
                where="gpus",
                remedy="name more, or take the task out",
            )

    @asynccontextmanager
    async def lease(self, count: int) -> AsyncIterator[GpuLease]:
        """A lease of `count` GPUs: taken on entering, given back on leaving; see `take`."""
        lease = await self.take(count)
        try:
            yield lease
        finally:
            lease.release()

    async def take(self, count: int, *, containers: bool = False) -> GpuLease:
        """Waits for `count` GPUs, all or none. The caller releases the lease.

        Args:
            containers: whether a container will use them. Then the engine must answer: while it restarts,
                containers may live on.

        Raises:
            ConfigError: the pool has fewer, or the locks cannot be used.
            MissingError: no engine answers, and `containers` is set.
            BoxStartError: the engine failed to list its containers.
        """
        self.check(count)
        lease = GpuLease()
        turn: file_locks.Lock | None = None

        async def attempt() -> GpuLease | None:
            nonlocal turn
            if count > 1 and turn is None:  # without it, several GPUs are never free at once
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
        """As `take`, but None if they are not free now. Never waits."""
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
        """Takes the GPUs that `lease` lacks. If some are missing, gives the others back unless `keep`."""
        for slot in self._slots:  # boxes share a GPU only after each GPU has one box
            for gpu in sorted(self.gpus, key=lambda gpu: gpu.uuid in self._occupied):
                missing = len(lease.gpus) < count and gpu not in lease.gpus
                if missing and (held := self._lock(gpu, slot)):
                    lease.add(gpu, held)
        if len(lease.gpus) == count:
            try:
                self._occupied = await asyncio.to_thread(occupied, lease.label)
            except MissingError:
                if containers:
                    raise
                self._occupied = {}  # without an engine, only the locks can tell
            if not self._occupied:
                return lease
            lease.release(self._occupied)
        if not keep:
            lease.release()
        return None

    def _lock(self, gpu: Gpu, slot: int) -> tuple[file_locks.Lock, ...]:
        if slot == 0:
            alone = file_locks.acquire(f"{gpu.uuid}.0", run=self._run)
            return (alone,) if alone else ()
        together = file_locks.acquire(f"{gpu.uuid}.0", shared=True)
        if together is None:
            return ()
        if mine := file_locks.acquire(f"{gpu.uuid}.{slot}", run=self._run):
            return (mine, together)
        together.release()
        return ()

    def _held_by(self) -> str:
        who = [f"{gpu.index} by {holder}" for gpu in self.gpus for holder in holders(gpu).values()]
        who += [f"{uuid} by {text}" for uuid, text in self._occupied.items()]
        return "; ".join(who) or "held by nobody now"


def divided(
    gpus: Sequence[Gpu], *, box: int, grader: int, slots_per_gpu: int = 1, where: str = "gpus"
) -> tuple[GpuPool, GpuPool]:
    """Two pools, for agents' boxes and for graders': an agent keeps its GPUs while it waits for a grade.

    Args:
        gpus: the GPUs to divide.
        box: the most GPUs of one agent's box.
        grader: the most GPUs of one grader's box; the graders' pool has that many.
        where: the configuration key, for the error.

    Raises:
        ConfigError: `gpus` are fewer than `box + grader`.
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
    """The holders of a GPU by slot; slot 0 is the whole GPU.

    Raises:
        ConfigError: the locks cannot be used.
    """
    slots = (name.rpartition(".")[2] for name in file_locks.names(f"{gpu.uuid}."))
    by_slot = {int(s): file_locks.holder(f"{gpu.uuid}.{s}") for s in slots if s.isdecimal()}
    return {slot: held for slot, held in sorted(by_slot.items()) if held is not None}


def users(label: str, containers: Iterable[dict[str, Any]]) -> dict[str, str]:
    """The containers that conflict with a lease: UUID to "container NAME of OWNER".

    Containers in different slots of a GPU do not conflict; one that has the whole GPU always does.

    Args:
        label: the lease, as `GpuLease.label`.
        containers: the engine's summaries.
    """
    wanted = [_slot(part) for part in label.split(",")]
    conflicts: dict[str, str] = {}
    for container in containers:
        labels = container["Labels"]
        for part in labels.get(ownership.GPU_LABEL, "").split(","):
            uuid, slot = _slot(part)
            if any(u == uuid and (s == slot or "0" in (s, slot)) for u, s in wanted):
                name = container["Names"][0].lstrip("/")
                conflicts[uuid] = (
                    f"container {name} of {labels.get(ownership.OWNER_LABEL, 'nobody')}"
                )
    return conflicts


def _slot(part: str) -> tuple[str, str]:
    """The UUID and the slot of one part of a label; a bare UUID means the whole GPU."""
    uuid, _, slot = part.strip().partition(".")
    return uuid, slot or "0"


def occupied(label: str) -> dict[str, str]:
    """As `users` for all containers of the engine, after removing those of dead owners. Blocks.

    Raises:
        MissingError: no engine answers.
        BoxStartError: the engine answers, but fails.
    """
    from air.sandbox.docker import engine

    engine.remove_left_behind(ownership.GPU_LABEL)
    return users(label, engine.boxes(ownership.GPU_LABEL))
