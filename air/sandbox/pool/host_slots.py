"""What a box takes from this host before it starts, and gives back once it is gone.

First its GPUs, then one of the host's places for boxes: who waits for a GPU, perhaps for hours,
keeps no place from others. Both are file locks (`air.sandbox.pool.file_locks`), so they hold across
processes and end with a process that is killed.

At most `AIR_MAX_BOXES` boxes are there at once on a host, of all pools of all processes and users
together, each of which counts as far as its own setting goes; by default 128, or 8 for each core
where that is more. Nested boxes, those that are waited for by somebody who holds a box already
(graders), have places of their own, a quarter as many, or both would wait for ever. The limit keeps
a host usable, it isolates nothing: where the default folder of locks cannot be used, boxes start
without it, and the log says so. Boxes that are opened without a pool are not counted.
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
    """Most boxes at once on this host: `AIR_MAX_BOXES`, or the default.

    Raises:
        ConfigError: it is not a number above 0.
    """
    given = os.environ.get(LIMIT_ENV, "").strip()
    if not given:
        return max(128, 8 * (os.cpu_count() or 1))
    if not given.isdecimal() or int(given) < 1:
        raise ConfigError(f"{given!r} is no number above 0", where=LIMIT_ENV, remedy="write 64")
    return int(given)


@dataclass
class Claim:
    """What one box holds; releasing twice is harmless."""

    gpus: GpuLease | None = None
    place: file_locks.Lock | None = None

    def release(self) -> None:
        """Gives everything back."""
        if self.gpus is not None:
            self.gpus.release()
        if self.place is not None:
            self.place.release()


class Claims:
    """Takes claims for the boxes of one pool.

    Args:
        gpus: where boxes get their GPUs; without it, a box with GPUs is refused.
        nested: whether its boxes are waited for by those who hold a box of another pool.
        run: the run that is named as holder; this process's own if empty.

    Raises:
        ConfigError: see `max_boxes`.
    """

    def __init__(self, gpus: GpuPool | None = None, *, nested: bool = False, run: str = "") -> None:
        kind, most = ("nested", max(1, max_boxes() // 4)) if nested else ("box", max_boxes())
        self._places = tuple(f"{kind}.{number}" for number in range(most))
        self._waiting = f"{kind}.waiting"
        self._gpus, self._run = gpus, run
        self._line = asyncio.Lock()

    def check(self, spec: BoxSpec) -> None:
        """Holds that a box of `spec` can be served at all.

        Raises:
            ConfigError: it wants more GPUs than there are.
        """
        if spec.gpus:
            self._pool.check(spec.gpus)

    async def take(self, spec: BoxSpec) -> Claim:
        """Waits until all is had that a box of `spec` needs.

        Raises:
            ConfigError: it wants more GPUs than there are, or the locks cannot be used.
            BoxStartError: the engine could not say which containers use the GPUs.
        """
        claim = Claim()
        try:
            if spec.gpus:
                claim.gpus = await self._pool.take(spec.gpus, containers=spec.provider == "docker")
            if self._limited:
                async with self._line:
                    claim.place = await file_locks.until(
                        self._place,
                        marker=self._waiting,
                        what=lambda: f"one of the host's {len(self._places)} places ({LIMIT_ENV})",
                    )
        except BaseException:  # cancellation too: what it has goes back
            claim.release()
            raise
        return claim

    async def try_take(self, spec: BoxSpec) -> Claim | None:
        """As `take`, but None where something is held by others, or others wait for it."""
        claim = Claim()
        try:
            if self.wanted(spec) or self._line.locked():
                return None
            if spec.gpus:
                containers = spec.provider == "docker"
                claim.gpus = await self._pool.try_take(spec.gpus, containers=containers)
                if claim.gpus is None:
                    return None
            claim.place = await self._place() if self._limited else None
        except BaseException:  # cancellation too: what it has goes back
            claim.release()
            raise
        if self._limited and claim.place is None:
            claim.release()
            return None
        return claim

    def wanted(self, spec: BoxSpec) -> bool:
        """Whether anybody on this host waits for what a box of `spec` holds."""
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
        """Whether places are counted; found out once."""
        try:
            file_locks.names("box.")
        except ConfigError as error:
            if os.environ.get(
                file_locks.FOLDER_ENV
            ):  # asked for by name, so not to be done without
                raise
            _LOG.warning("%s; until then nothing limits the boxes of this host", error)
            return False
        return True

    async def _place(self) -> file_locks.Lock | None:
        return file_locks.acquire(*self._places, run=self._run)
