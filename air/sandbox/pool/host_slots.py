"""The share of this host that a box takes before it starts, and gives back once it is gone.

A box takes its GPUs first, then one of the host's slots: a box that waits for a GPU, perhaps for hours,
blocks no slot. Both are file locks (`air.sandbox.pool.file_locks`): they hold across processes and end
with a process that is killed.

`AIR_MAX_BOXES` bounds the boxes on a host, of all pools, processes and users together; each process
counts up to its own setting. The default is 128, or 8 per core if that is more. Nested boxes, for which a
holder of another box waits (graders), have slots of their own, a quarter as many; otherwise both could
wait for ever. The limit keeps a host usable; it isolates nothing. If the default folder of locks cannot
be used, boxes start without a limit, and the log says so. Boxes opened without a pool are not counted.
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
    """The most boxes at once on this host: `AIR_MAX_BOXES`, or the default.

    Raises:
        ConfigError: it is not a positive integer.
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
    """What one box holds of its host; releasing twice is harmless."""

    gpus: GpuLease | None = None
    slot: file_locks.Lock | None = None

    def release(self) -> None:
        """Gives everything back."""
        if self.gpus is not None:
            self.gpus.release()
        if self.slot is not None:
            self.slot.release()


class HostSlots:
    """Hands out slots, and GPUs, to the boxes of one pool.

    Args:
        gpus: where boxes get their GPUs; without it, a box with GPUs is refused.
        nested: whether its users hold a box of another pool while they wait.
        run: the run that is named as the holder; this process's own if empty.

    Raises:
        ConfigError: see `max_boxes`.
    """

    def __init__(self, gpus: GpuPool | None = None, *, nested: bool = False, run: str = "") -> None:
        kind, most = ("nested", max(1, max_boxes() // 4)) if nested else ("box", max_boxes())
        self._names = tuple(f"{kind}.{number}" for number in range(most))
        self._waiting = f"{kind}.waiting"
        self._gpus, self._run = gpus, run
        self._line = asyncio.Lock()

    def check(self, spec: BoxSpec) -> None:
        """Checks that a box of `spec` can be served at all.

        Raises:
            ConfigError: it wants more GPUs than there are.
        """
        if spec.gpus:
            self._pool.check(spec.gpus)

    async def take(self, spec: BoxSpec) -> HostShare:
        """Waits until a box of `spec` has its GPUs and its slot.

        Raises:
            ConfigError: it wants more GPUs than there are, or the locks cannot be used.
            BoxStartError: the engine could not say which containers use the GPUs.
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
        """As `take`, but None if others hold, or wait for, what it needs. Never waits."""
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
        """Whether any process on this host waits for what a box of `spec` holds."""
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
        """Whether slots are counted; decided once."""
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
