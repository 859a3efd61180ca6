"""Host slots: file locks that limit how many boxes exist on this machine.

A box holds a slot from its start to its end.

A box takes its GPUs first and its slot afterwards, so a box that waits for a GPU, perhaps for hours, blocks
no slot. Slots and GPUs are file locks (`air.sandbox.pool.file_locks`): they hold across processes, and end
with a process that is killed.

`AIR_MAX_BOXES` limits the boxes of all pools, processes and users of a host together; each process applies
its own value of the variable. The default is 128, or 8 per core if that is more. Nested boxes are boxes for
which the holder of another box waits, such as graders. They have separate slots, a quarter as many;
otherwise both boxes could wait for ever. The limit keeps a host usable; it isolates nothing. If the default
folder of locks cannot be used, boxes start without a limit, and the log says so. Boxes that are opened
without a pool are not counted.
"""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass
from functools import cached_property

from air.errors import ConfigError
from air.sandbox.contract.box import BoxSpec
from air.sandbox.pool import file_locks
from air.sandbox.pool.gpu_leases import WAITING as GPUS_WAITING
from air.sandbox.pool.gpu_leases import GpuLease, GpuPool

LIMIT_ENV = "AIR_MAX_BOXES"
_LOG = logging.getLogger(__name__)


def max_boxes() -> int:
    """Returns the maximum number of boxes at once on this host: `AIR_MAX_BOXES`, or the default.

    Raises:
        ConfigError: the value of `AIR_MAX_BOXES` is not a positive integer.
    """
    text = os.environ.get(LIMIT_ENV, "").strip()
    if not text:
        return max(128, 8 * (os.cpu_count() or 1))
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(
            f"{text!r} must be a positive integer", where=LIMIT_ENV, remedy="write 64"
        )
    return int(text)


@dataclass
class HostShare:
    """The GPUs and the slot that one box holds on its host; releasing them twice is harmless."""

    gpus: GpuLease | None = None
    slot: file_locks.Lock | None = None

    def release(self) -> None:
        """Gives the GPUs and the slot back."""
        if self.gpus is not None:
            self.gpus.release()
        if self.slot is not None:
            self.slot.release()


class HostSlots:
    """The host slots and GPUs that the boxes of one pool take: each box needs one slot, and perhaps GPUs.

    Args:
        gpus: the pool that gives boxes their GPUs; None refuses boxes with GPUs.
        nested: whether callers hold a box of another pool while they wait for a box of this pool.
        run: the run that the lock files name as the holder; this process's own run if empty.

    Raises:
        ConfigError: the value of `AIR_MAX_BOXES` is not a positive integer.
    """

    def __init__(self, gpus: GpuPool | None = None, *, nested: bool = False, run: str = "") -> None:
        kind, most = ("nested", max(1, max_boxes() // 4)) if nested else ("box", max_boxes())
        self._names = tuple(f"{kind}.{number}" for number in range(most))
        self._waiting = f"{kind}.waiting"
        self._gpus, self._run = gpus, run
        self._line = asyncio.Lock()

    def check(self, spec: BoxSpec) -> None:
        """Checks that the GPU pool has enough GPUs for a box of `spec`, which would otherwise wait for ever.

        Raises:
            ConfigError: the box needs more GPUs than the GPU pool has.
        """
        if spec.gpus:
            self._pool.check(spec.gpus)

    async def take(self, spec: BoxSpec) -> HostShare:
        """Waits for the GPUs and the slot of a box of `spec`, and returns them; the caller must release them.

        Raises:
            ConfigError: the box needs more GPUs than the GPU pool has, or the locks cannot be used.
            MissingError: the box is a container with GPUs, and no container engine answers.
            BoxStartError: the container engine could not tell which containers use the GPUs.
        """
        share = HostShare()
        try:
            if spec.gpus:
                share.gpus = await self._pool.take(spec.gpus, containers=spec.provider == "docker")
            if self._limited:
                async with self._line:
                    share.slot = await file_locks.until(
                        self._lock,
                        marker=self._waiting,
                        what=lambda: (
                            f"one of the host's {len(self._names)} slots for boxes ({LIMIT_ENV})"
                        ),
                    )
        except BaseException:  # cancellation too: give back what it has
            share.release()
            raise
        return share

    async def try_take(self, spec: BoxSpec) -> HostShare | None:
        """Returns the GPUs and the slot of a box of `spec`, like `take`, but never waits for other boxes.

        Returns None if the GPUs or the slot are not free, or if others already wait for such.
        """
        share = HostShare()
        try:
            if self.wanted(spec) or self._line.locked():
                return None
            if spec.gpus:
                containers = spec.provider == "docker"
                share.gpus = await self._pool.try_take(spec.gpus, containers=containers)
                if share.gpus is None:
                    return None
            share.slot = await self._lock() if self._limited else None
        except BaseException:  # cancellation too: give back what it has
            share.release()
            raise
        if self._limited and share.slot is None:
            share.release()
            return None
        return share

    def wanted(self, spec: BoxSpec) -> bool:
        """Whether any process on this host waits for a slot, or, if `spec` needs GPUs, for GPUs."""
        gpus = bool(spec.gpus) and file_locks.wanted(GPUS_WAITING)
        return gpus or (self._limited and file_locks.wanted(self._waiting))

    @property
    def _pool(self) -> GpuPool:
        if self._gpus is None:
            raise ConfigError(
                "a box needs GPUs, and none are given to boxes",
                where="gpus",
                remedy='set `gpus = "auto"`, or name them: `air gpus` lists them',
            )
        return self._gpus

    @cached_property
    def _limited(self) -> bool:
        """Whether slots limit the number of boxes; false if the default folder of locks cannot be used."""
        try:
            file_locks.names("box.")
        except ConfigError as error:
            if os.environ.get(file_locks.FOLDER_ENV):  # the user named the folder: it must work
                raise
            _LOG.warning("%s; until then nothing limits the boxes of this host", error)
            return False
        return True

    async def _lock(self) -> file_locks.Lock | None:
        return file_locks.acquire(*self._names, run=self._run)
