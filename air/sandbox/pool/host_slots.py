"""Host slots: file locks that limit how many boxes exist on this machine at once.

A box holds one slot from its start to its end. A box takes its GPUs first and its slot afterwards. So a box
that waits for a GPU, perhaps for hours, occupies no slot. Slots and GPUs are file locks
(`air.sandbox.pool.file_locks`), which all processes respect and which the kernel frees when their process
ends.

The environment variable `AIR_MAX_BOXES` limits the boxes of all pools, processes and users of a host
together. Each process applies its own value of the variable. The default is 128, or 8 per CPU core if that is
more. A nested box is a box for which the holder of another box waits; graders are nested boxes. Nested boxes
have separate slots, a quarter as many, because otherwise both boxes could wait for ever.

The limit only prevents overload of the host. If the default folder of locks cannot be used, boxes start
without a limit, and a warning in the log reports this. Boxes that are opened without a pool are not counted.
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
    """Returns the maximum number of boxes at once on this host: `AIR_MAX_BOXES`, or its default.

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
    """The GPUs and the host slot that one box holds. A second call of `release` does nothing."""

    gpus: GpuLease | None = None
    slot: file_locks.Lock | None = None

    def release(self) -> None:
        """Gives the GPUs and the host slot back."""
        if self.gpus is not None:
            self.gpus.release()
        if self.slot is not None:
            self.slot.release()


class HostSlots:
    """Takes host slots and GPUs for the boxes of one pool. Each box needs one slot, and perhaps GPUs.

    Args:
        gpus: the pool that gives boxes their GPUs. If it is None, a request for a box with GPUs fails.
        nested: whether callers hold a box of another pool while they wait for a box of this pool.
        run: the name of the run that is written into the lock files. If it is empty, the name of this
            process's own run is written.

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
        """Checks that the GPU pool has enough GPUs for a box of `spec`, which otherwise would wait for ever.

        Raises:
            ConfigError: the box needs more GPUs than the GPU pool has.
        """
        if spec.gpus:
            self._pool.check(spec.gpus)

    async def take(self, spec: BoxSpec) -> HostShare:
        """Waits for the GPUs and the host slot that a box of `spec` needs, and returns them.

        The caller must release the result.

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
        """Takes the GPUs and the host slot that a box of `spec` needs, but never waits, unlike `take`.

        Returns None if the GPUs or a slot are not free, or if somebody already waits for them.
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
        """Whether any process on this host waits for a host slot, or for GPUs if `spec` needs GPUs."""
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
        """Whether slots limit the number of boxes. False if the default folder of locks cannot be used."""
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
