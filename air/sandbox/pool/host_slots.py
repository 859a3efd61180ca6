"""Host slots: file locks that limit how many boxes (isolated places for commands, by default containers)
exist on this machine at once. Each box of a `Pool` holds one slot.

The environment variable `AIR_MAX_BOXES` sets the number of slots for all processes and users together; each
process uses the value in its own environment. A box takes its GPUs before its slot, so a box that waits for
GPUs occupies no slot. Nested boxes, such as those of graders, are boxes for which the holder of another box
waits. They have slots of their own, a quarter as many: if all boxes shared the same slots, the agents' boxes
could occupy all of them, and every agent would wait for a grader's box for ever. If the default folder of
locks cannot be used, the number of boxes is not limited, and a warning is logged.
"""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass, field
from functools import cached_property

from air.errors import ConfigError
from air.sandbox.contract.box import BoxSpec
from air.sandbox.pool import file_locks
from air.sandbox.pool.gpu_leases import WAITING as GPUS_WAITING
from air.sandbox.pool.gpu_leases import GpuLease, GpuPool

LIMIT_ENV = "AIR_MAX_BOXES"
_LOG = logging.getLogger(__name__)


def max_boxes() -> int:
    """Returns the maximum number of boxes on this machine at once: the value of the environment variable
    `AIR_MAX_BOXES`, or by default the larger of 128 and 8 per CPU core.

    Nested boxes (those of graders) do not count; they have their own limit. Raises ConfigError if the
    variable is not a positive integer.
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
    """The GPUs and the host slot (the right to have one box on this machine) that one box holds. `slot` is
    None if the number of boxes is not limited."""

    gpus: GpuLease = field(default_factory=GpuLease)
    slot: file_locks.Lock | None = None

    def release(self) -> None:
        """Gives the GPUs and the host slot back. A second call does nothing."""
        self.gpus.release()
        if self.slot is not None:
            self.slot.release()


class HostSlots:
    """Takes the GPUs and host slots that the boxes of one pool need. (A host slot is the right to have one
    box on this machine. The number of slots limits the number of boxes.)

    `gpus` is the pool that gives boxes their GPUs; None: a request for a box with GPUs raises ConfigError.
    `nested` says whether callers hold another box while they wait for one of these, as agents do for graders'
    boxes; nested boxes have slots of their own. `run` is the id of the run of air, for messages; empty means
    the run of this process.
    """

    def __init__(self, gpus: GpuPool | None = None, *, nested: bool = False, run: str = "") -> None:
        kind, count = ("nested", max(1, max_boxes() // 4)) if nested else ("box", max_boxes())
        self._names = tuple(f"{kind}.{number}" for number in range(count))
        self._waiting = f"{kind}.waiting"
        self._gpus, self._run = gpus, run
        self._line = asyncio.Lock()

    def check(self, spec: BoxSpec) -> None:
        """Raises ConfigError if there are too few GPUs for a box with the settings `spec`, because the box
        would then wait for ever."""
        if spec.gpus:
            self._pool.check(spec.gpus)

    async def take(self, spec: BoxSpec) -> HostShare:
        """Waits for the GPUs and the host slot (the right to have one box on this machine) that a box with
        the settings `spec` needs, and returns them. The caller must call `release` on the result.

        Raises ConfigError if the locks cannot be used, and the errors of `GpuPool.take`.
        """
        share = HostShare()
        try:
            if spec.gpus:
                share.gpus = await self._pool.take(spec.gpus, containers=spec.provider == "docker")
            if self._limited:
                what = f"one of the host's {len(self._names)} slots for boxes ({LIMIT_ENV})"
                async with self._line:
                    share.slot = await file_locks.until(
                        self._lock, marker=self._waiting, what=lambda: what
                    )
        except BaseException:  # cancellation too: give back what it has
            share.release()
            raise
        return share

    async def try_take(self, spec: BoxSpec) -> HostShare | None:
        """Takes the GPUs and the host slot (the right to have one box on this machine) that a box with the
        settings `spec` needs, without waiting, and returns them. Returns None if they are not all free, or if
        another caller already waits for them."""
        share = HostShare()
        try:
            if self.wanted(spec) or self._line.locked():
                return None
            if spec.gpus:
                containers = spec.provider == "docker"
                gpus = await self._pool.try_take(spec.gpus, containers=containers)
                if gpus is None:
                    return None
                share.gpus = gpus
            share.slot = await self._lock() if self._limited else None
        except BaseException:  # cancellation too: give back what it has
            share.release()
            raise
        if self._limited and share.slot is None:
            share.release()
            return None
        return share

    def wanted(self, spec: BoxSpec) -> bool:
        """Whether any process on this machine waits for a host slot (the right to have one box on it) or, if
        `spec` needs GPUs, for GPUs."""
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
        """Whether host slots, which are file locks, limit the number of boxes. False if the default folder of
        locks cannot be used. Raises ConfigError if the folder that `AIR_LOCK_DIR` names cannot be used."""
        try:
            file_locks.names("box.")
        except ConfigError as error:
            if os.environ.get(file_locks.FOLDER_ENV):  # the user chose the folder, so it must work
                raise
            _LOG.warning("%s; until then nothing limits the boxes of this host", error)
            return False
        return True

    async def _lock(self) -> file_locks.Lock | None:
        return file_locks.acquire(*self._names, run=self._run)
