"""A pool of boxes (isolated places to run commands, by default Docker containers): limits how many boxes
exist at once, and starts spare boxes before a caller asks for them.

Each box goes to one caller and is then removed, unless the caller gives it back for reuse. A box holds its
GPUs and a host slot (the right to have one box on this machine, see `air.sandbox.pool.host_slots`) from
before its start until it is gone. A caller that holds a box must not wait for another box of the same pool,
because all callers might then wait for each other. Such a caller takes the second box from another pool,
which was made with `nested=True`. For example, agents have one pool, and their graders another.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from air.aio import wait_shielded
from air.errors import AirError, BoxStartError, ConfigError, InfrastructureError
from air.sandbox import start_box
from air.sandbox.contract import ownership
from air.sandbox.contract.box import Box, BoxSpec, BoxStats, Snapshot
from air.sandbox.ops import orphans
from air.sandbox.pool.gpu_leases import GpuPool
from air.sandbox.pool.host_slots import HostShare, HostSlots
from air.sandbox.pool.image_ids import Digests
from air.sandbox.pool.start_retry import retry
from air.sandbox.wire.guest_box import GuestBox

if TYPE_CHECKING:
    from air.sandbox.docker import snapshot_service

STARTS_AT_ONCE = 4
CLOSES_AT_ONCE = 8
"""The maximum number of boxes that are removed at the same time. A larger number would not be faster, and
would delay starts of boxes, because removals and starts share the threads of `air.sandbox.docker.engine` and
the container engine (Docker or Podman)."""
END_SECONDS = 2.0
"""The time limit in seconds for ending the processes in a box that waits for its removal. The box's guest
(air's program inside the box) ends them."""
MOST_SPECS = 32
"""The pool keeps spare boxes (boxes kept ready for later callers) for at most this number of different box
settings (`BoxSpec`): those that callers requested most recently. In addition, it keeps the spare boxes for
settings with which a caller now has a box or waits for one."""
QUIET_SECONDS, BURST_SECONDS = 0.5, 3.0
"""After a caller has got a box, spare boxes start only when no other caller has got one for `QUIET_SECONDS`
seconds, but they wait for at most `BURST_SECONDS` seconds in all. The reason: the start of a box takes as
much CPU time as many commands, and the first commands of callers that have just got a box have priority."""
RESET_SECONDS = 10.0
GIVE_WAY_SECONDS = 1.0
_LOG = logging.getLogger(__name__)


@dataclass(eq=False)
class _SpareBoxes:
    """A group of boxes in a `Pool` that no caller has at present. All of them have the same settings `spec`
    and the same version of the container image. (A box is an isolated place for commands.) `ready` contains
    the boxes that a caller can get at once, and `starting` is the number of boxes that are starting."""

    spec: BoxSpec
    ready: deque[GuestBox] = field(default_factory=deque)
    starting: int = 0
    refill: bool = True
    """Whether the pool starts new spare boxes (boxes kept ready for later callers) with the settings `spec`.
    False after a failed start, until a caller requests a box with these settings again."""
    paused: bool = False
    """Whether the pool at present starts no spare boxes (boxes kept ready for later callers) with the
    settings `spec`, because other processes or callers wait for GPUs or host slots, or none are free for
    them."""
    outdated: bool = False
    """Whether the boxes of this group are outdated, because the tag of their image now refers to a newer
    image."""


@dataclass
class _Waiter:
    subpool: _SpareBoxes
    box: asyncio.Future[GuestBox]


class Pool:
    """Gives boxes (isolated places to run commands, by default Docker containers) to callers, and starts
    spare boxes before a caller asks for them. Use a pool with `async with`.

    Leaving the `async with` block waits until all boxes of the pool are gone. Raises ValueError if
    `max_boxes` is below 1 or `warm` is negative, ConfigError if `AIR_MAX_BOXES` is not a positive integer.

    Args:
        max_boxes: the maximum number of boxes at once, including those that start, close, or wait for GPUs or
            a host slot.
        warm: the number of spare boxes to have ready for each `BoxSpec` that callers request, within
            `max_boxes`. A spare box never waits for GPUs or a host slot. It is removed when any process on
            this machine waits for them.
        run: the id of the run (one use of air, such as a training), which is written into the boxes' labels.
            Empty means the run of this process.
        gpus: the pool that gives boxes their GPUs. If it is None, a request for a box with GPUs raises
            ConfigError.
        nested: whether callers hold a box of another pool while they wait for a box of this pool. Nested
            boxes have host slots of their own.
        snapshots: whether `async with` also starts the helper container that takes snapshots, so that the
            first snapshot is as fast as later ones. Then `async with` raises BoxStartError if the helper does
            not start.
    """

    def __init__(
        self,
        max_boxes: int,
        warm: int = 0,
        *,
        run: str = "",
        gpus: GpuPool | None = None,
        nested: bool = False,
        snapshots: bool = False,
    ) -> None:
        if max_boxes < 1 or warm < 0:
            raise ValueError("a pool needs max_boxes >= 1 and warm >= 0")
        self.stats = BoxStats()
        self._max, self._warm, self._run = max_boxes, warm, run
        self._slots = HostSlots(gpus, nested=nested, run=run)
        self._held: dict[GuestBox, HostShare] = {}
        self.digests = Digests()
        """A cache of the ids of container images. A caller that has just asked the container engine for the
        id of an image may store it here, so that the pool does not ask for it again."""
        self._subpools: dict[str, _SpareBoxes] = {}
        self._waiters: list[_Waiter] = []
        self._lent: dict[GuestBox, _SpareBoxes] = {}
        self._starts: set[asyncio.Task[None]] = set()
        self._closes: set[asyncio.Task[None]] = set()
        self._gate = asyncio.Semaphore(STARTS_AT_ONCE)
        self._close_gate = asyncio.Semaphore(CLOSES_AT_ONCE)
        self._snapshots = snapshots
        self._snapshot_helper: snapshot_service.SnapshotHelper | None = None
        self._burst = self._latest = float("-inf")
        """Two times of `time.monotonic()`, which decide when spare boxes may start. `_latest`: when a caller
        last got a box. `_burst`: when a caller got the first box of the present burst. A burst is a series of
        boxes given to callers, with at most `QUIET_SECONDS` seconds between one and the next."""
        self._later: asyncio.TimerHandle | None = None
        self._open = False

    async def __aenter__(self) -> Pool:
        if self._snapshots:
            from air.sandbox.docker import snapshot_service

            self._snapshot_helper = await snapshot_service.hold(self._run)
        try:
            await wait_shielded(asyncio.to_thread(orphans.collect))
        except InfrastructureError as error:
            _LOG.warning("boxes of earlier runs could not be removed: %s", error)
        except BaseException:  # cancellation too: nobody else would release the helper
            await self._release_snapshot_helper()
            raise
        self._open = True
        self._spawn(self._starts, self._give_way())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._open = False
        if self._later is not None:
            self._later.cancel()
        for waiter in self._waiters:
            if not waiter.box.done():
                waiter.box.set_exception(BoxStartError("the pool was closed meanwhile"))
        self._waiters.clear()
        for task in self._starts:
            task.cancel()
        for box in [
            *self._lent,
            *(b for subpool in self._subpools.values() for b in subpool.ready),
        ]:
            self._retire(box)
        self._subpools.clear()
        await wait_shielded(self._drain())
        await self._release_snapshot_helper()

    async def _release_snapshot_helper(self) -> None:
        if self._snapshot_helper is not None:
            await wait_shielded(self._snapshot_helper.release())
            self._snapshot_helper = None

    @asynccontextmanager
    async def lease(self, spec: BoxSpec, *, snapshot: Snapshot | None = None) -> AsyncIterator[Box]:
        """Async context manager: waits for a box with the settings `spec` as `take` does, yields the box, and
        removes it after the block.

        If `snapshot` (a frozen copy of a workspace) is given, the box's workspace is first replaced by a copy
        of it. Raises the errors of `take` and `Box.restore`.
        """
        box = await self.take(spec)
        try:
            if snapshot is not None:
                await box.restore(snapshot)
            yield box
        finally:
            self.give_back(box)

    def prepare(self, spec: BoxSpec) -> None:
        """Starts spare boxes with the settings `spec` in the background, so that later calls of `take` get a
        box at once. Starts as many as the pool's argument `warm` says. Does not wait for them. Raises
        ConfigError if `spec` needs more GPUs than this pool has."""
        self._slots.check(spec)
        self._spawn(self._starts, self._prepared(spec))

    async def take(self, spec: BoxSpec) -> GuestBox:
        """Waits for a box with the settings `spec`, and returns it; no other caller uses the box meanwhile.
        The caller must finally pass the box to `give_back` or `give_back_for_reuse`. (`lease` does both
        steps.)

        Raises:
            ConfigError: the spec needs more GPUs than this pool has.
            MissingError: no container engine answers, or the image is not built.
            BoxStartError: the box did not start after all attempts, or the pool was closed meanwhile.
            RuntimeError: the call is outside of the pool's `async with` block.
        """
        if not self._open:
            raise RuntimeError("use the pool through `async with`: it is not open")
        self._slots.check(spec)
        since = time.monotonic()
        try:
            subpool = await self._subpool_of(spec)
        except AirError:
            self.stats.failed += 1
            raise
        if not self._open:
            raise BoxStartError("the pool was closed meanwhile")
        waiter = _Waiter(subpool, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        self._balance()
        try:
            box = await waiter.box
        except asyncio.CancelledError:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif waiter.box.done() and not waiter.box.cancelled() and not waiter.box.exception():
                self._lent.pop(waiter.box.result(), None)
                waiter.subpool.ready.appendleft(waiter.box.result())  # nobody has used this box
            self._balance()
            raise
        box.queue_seconds = time.monotonic() - since
        self.stats.queue_seconds += box.queue_seconds
        box.hand_out()
        self._balance()
        return box

    def give_back(self, box: GuestBox) -> None:
        """Begins to remove a box that `take` returned, and returns at once. A second call for the same box
        does nothing."""
        if box in self._lent:
            self._retire(box)

    def give_back_for_reuse(self, box: GuestBox) -> None:
        """Begins to reset a box that `take` returned to the state of a new box, and returns at once. The pool
        then gives the box to another caller.

        The box is removed instead if it cannot be reset (see `Box.reset`), or if its image is outdated. The
        caller must not use the box after this call.
        """
        if box in self._lent:
            self._spawn(self._closes, self._recycled(box, self._lent[box]))

    async def _recycled(self, box: GuestBox, subpool: _SpareBoxes) -> None:
        try:
            async with asyncio.timeout(RESET_SECONDS):
                reason = await box.reset()
        except AirError as error:
            _LOG.warning("a box could not be reset: %s", error)
            reason = "it did not answer"
        except TimeoutError:
            reason = f"its reset took more than {RESET_SECONDS:.0f} s"
        except BaseException:  # cancellation too: otherwise the box would count as lent for ever
            if box in self._lent:
                self._retire(box)
            raise
        if box not in self._lent:  # the pool was closed meanwhile
            return
        if reason or not self._open or subpool.outdated:
            self.stats.refused[reason] += 1
            self._retire(box)
            return
        self.stats.reused += 1
        box.resets += 1
        del self._lent[box]
        subpool.ready.appendleft(box)  # first in line: its data may be in the CPU's caches
        self._balance()

    async def _subpool_of(self, spec: BoxSpec) -> _SpareBoxes:
        """Returns the group of boxes for the settings `spec` and the image to which the tag in `spec` now
        refers; makes the group if there is none. Marks groups with the same settings but an earlier image as
        outdated."""
        digest = await self.digests.of(spec)
        key = f"{digest} {spec.model_dump_json()}"
        subpool = self._subpools.pop(key, None) or _SpareBoxes(spec)
        self._subpools[key] = subpool  # moves it to the end: sorted by last request
        self._drop_rare_spares()
        for other in self._subpools.values():
            if other.spec == spec:
                other.outdated = other is not subpool
        subpool.refill = True
        return subpool

    def _drop_rare_spares(self) -> None:
        """Removes spare boxes (boxes kept ready for later callers) with rarely requested settings, because
        callers may request boxes with any number of different settings (`BoxSpec`). Keeps the spare boxes for
        the `MOST_SPECS` settings that were requested last, and for settings with which a box is starting, or
        a caller has a box or waits."""
        used = {*self._lent.values(), *(waiter.subpool for waiter in self._waiters)}
        for key, subpool in list(self._subpools.items())[:-MOST_SPECS]:
            if subpool.starting or subpool in used:
                continue
            while subpool.ready:
                self._retire(subpool.ready.popleft())
            del self._subpools[key]

    async def _prepared(self, spec: BoxSpec) -> None:
        try:
            await self._subpool_of(spec)
        except AirError as error:
            _LOG.warning("a spare box did not start: %s", error)
        self._balance()

    async def _give_way(self) -> None:
        """Runs until cancelled. Checks every second whether any process on this machine waits for GPUs or for
        a host slot (the right to have one box on this machine). If so, removes the spare boxes that occupy
        such things."""
        while True:
            await asyncio.sleep(GIVE_WAY_SECONDS)
            for subpool in self._subpools.values():
                try:
                    subpool.paused = self._slots.wanted(subpool.spec)
                except ConfigError as error:
                    _LOG.warning("%s", error)
                while subpool.paused and subpool.ready:
                    self._retire(subpool.ready.popleft())
            self._balance()

    def _balance(self) -> None:
        """Gives ready boxes to waiting callers, starts boxes for the other waiting callers, then removes or
        starts spare boxes (boxes kept ready for later callers). Called after every change in the pool."""
        if not self._open:
            return
        for waiter in list(self._waiters):
            if box := self._next(waiter.subpool):
                self._waiters.remove(waiter)
                self._lent[box] = waiter.subpool
                waiter.box.set_result(box)
                now = time.monotonic()
                self._burst = now if now > self._latest + QUIET_SECONDS else self._burst
                self._latest = now
        missing = Counter(waiter.subpool for waiter in self._waiters)
        missing.subtract({subpool: subpool.starting for subpool in missing})
        for waiter in self._waiters:
            if missing[waiter.subpool] > 0 and self.stats.live < self._max:
                missing[waiter.subpool] -= 1
                self._start(waiter.subpool)
        self._make_room()
        for subpool in self._subpools.values():
            limit = self._warm if subpool.spec.gpus else len(subpool.ready)
            while len(subpool.ready) > (0 if subpool.outdated else limit):
                self._retire(subpool.ready.popleft())
        if self._waiters or self._spares_wait():
            return
        for subpool in reversed(self._subpools.values()):
            if subpool.refill and not subpool.paused and not subpool.outdated:
                missing_spares = self._warm - len(subpool.ready) - subpool.starting
                for _ in range(min(missing_spares, self._max - self.stats.live)):
                    self._start(subpool, spare=True)

    def _spares_wait(self) -> bool:
        """Whether spare boxes (boxes kept ready for later callers) must not start yet, because callers have
        just got boxes. If so, schedules a call of `_balance` for the time when they may start."""
        wait = min(self._latest + QUIET_SECONDS, self._burst + BURST_SECONDS) - time.monotonic()
        if wait > 0 and self._later is None:
            self._later = asyncio.get_running_loop().call_later(wait, self._resume)
        return wait > 0

    def _resume(self) -> None:
        self._later = None
        self._balance()

    def _next(self, subpool: _SpareBoxes) -> GuestBox | None:
        """Takes a usable box from the ready boxes of `subpool` (spare boxes with equal settings) and returns
        it, or None if there is none. Removes ready boxes that are dead or too old."""
        while subpool.ready:
            box = subpool.ready.popleft()
            if box.alive and time.monotonic() - box.born < ownership.WARM_SECONDS / 2:
                return box
            self._retire(box)
        return None

    def _make_room(self) -> None:
        """If the pool is full, removes ready boxes for which no caller waits, so that boxes with the settings
        for which callers wait can start."""
        removals = len(self._waiters) - len(self._closes)
        removals -= sum(subpool.starting for subpool in self._subpools.values())
        for subpool in self._subpools.values():
            while removals > 0 and subpool.ready and self.stats.live >= self._max:
                self._retire(subpool.ready.popleft())
                removals -= 1

    def _start(self, subpool: _SpareBoxes, *, spare: bool = False) -> None:
        subpool.starting += 1
        self.stats.live += 1
        self._spawn(self._starts, self._started(subpool, spare))

    async def _started(self, subpool: _SpareBoxes, spare: bool) -> None:
        try:
            box = await self._box_with_slot(subpool.spec, spare)
        except BaseException as error:  # cancellation too: the waiter must learn of it
            self.stats.live -= 1
            if isinstance(error, AirError):
                self._failed(subpool, error)
            else:
                self._failed(subpool, BoxStartError(f"a box did not start: {error!r}"))
                raise
        else:
            if box is None:
                self.stats.live -= 1
                subpool.paused = True
            else:
                self._stock(subpool, box)
        finally:
            subpool.starting -= 1
            self._balance()

    async def _box_with_slot(self, spec: BoxSpec, spare: bool) -> GuestBox | None:
        """Waits for GPUs and a host slot (the right to have one box on this machine), starts a box with them,
        and returns it. If `spare` is true, does not wait: returns None if they are not free."""
        share = await (self._slots.try_take if spare else self._slots.take)(spec)
        if share is None:
            return None
        try:
            async with self._gate:
                box = await retry(lambda: start_box(spec, run=self._run, gpus=share.gpus))
        except BaseException:  # cancellation too; `start_box` has removed its box by now
            share.release()
            raise
        self._held[box] = share
        return box

    def _stock(self, subpool: _SpareBoxes, box: GuestBox) -> None:
        self.stats.started += 1
        if self._open:
            subpool.ready.append(box)
        else:
            self._retire(box)

    def _failed(self, subpool: _SpareBoxes, error: AirError) -> None:
        """Handles the failed start of a box in `subpool`, a group of boxes with equal settings. In the first
        caller that waits for such a box, `take` raises `error`; other callers keep waiting.

        No spare box of this group is started until a caller requests such a box again.
        """
        if not self._open:
            return
        self.stats.failed += 1
        subpool.refill = False
        for waiter in self._waiters:
            if waiter.subpool is subpool:
                self._waiters.remove(waiter)
                if not waiter.box.done():
                    waiter.box.set_exception(error)
                return
        _LOG.warning("a spare box did not start: %s", error)

    def _retire(self, box: GuestBox) -> None:
        self._lent.pop(box, None)
        self._spawn(self._closes, self._closed(box))

    async def _closed(self, box: GuestBox) -> None:
        try:
            if self._close_gate.locked():
                await self._end_processes(box)
            async with self._close_gate:
                await box.close()
        except AirError as error:  # the guest has ended; `orphans.collect` removes the rest later
            _LOG.warning("%s", error)
        finally:
            # Not earlier: a box may use its GPUs until it is gone. (The next lease checks for its container.)
            self._held.pop(box).release()
            self.stats.closed += 1
            self.stats.live -= 1
            asyncio.get_running_loop().call_soon(self._balance)

    async def _end_processes(self, box: GuestBox) -> None:
        """Ends the processes in a box that waits for its removal, so that they use no CPU time meanwhile. A
        box that is frozen or has ended may not answer; its removal ends them."""
        with suppress(AirError, TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await box.end_processes()

    def _spawn(self, group: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        group.add(task)
        task.add_done_callback(group.discard)

    async def _drain(self) -> None:
        while tasks := [*self._starts, *self._closes]:
            await asyncio.wait(tasks)
