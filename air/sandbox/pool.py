"""A bounded set of boxes, some of them started ahead.

A pool belongs to one process and one event loop. A box is lent once, untouched and alive, and
removed when it comes back; starting ahead and removing happen off the caller's path, and both are
finished, with nothing left, when the pool is left. Whoever holds a box must not wait for another
one of the same pool while all are out: boxes for different purposes come from different pools.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    wait_random_exponential,
)

from air.errors import AirError, BoxStartError, InfrastructureError
from air.sandbox import cleanup, start_box
from air.sandbox.base import Box, BoxSpec, BoxStats, Snapshot
from air.sandbox.failure import EngineAwayError, TransientStartError
from air.sandbox.guestbox import GuestBox, to_the_end

ATTEMPTS = 4
AWAY_SECONDS = 60.0
"""How long a start waits for an engine that is being restarted."""
STARTS_AT_ONCE = 4
_LOG = logging.getLogger(__name__)


@dataclass
class _Shelf:
    """All boxes of one spec that nobody holds."""

    spec: BoxSpec
    ready: deque[GuestBox] = field(default_factory=deque)
    starting: int = 0
    wanted: bool = True
    """Whether spares are started ahead; off after a failure, until somebody asks again."""


@dataclass
class _Waiter:
    shelf: _Shelf
    box: asyncio.Future[GuestBox]


class Pool:
    """Lends boxes; use through `async with`.

    Args:
        max_boxes: most boxes that exist at once: lent, ready, starting and closing together.
        warm: boxes kept ready for every spec that was asked for, as far as `max_boxes` allows.
        run: the run the boxes belong to, for labels; this process's own if empty.
    """

    def __init__(self, max_boxes: int, warm: int = 0, *, run: str = "") -> None:
        if max_boxes < 1 or warm < 0:
            raise ValueError("a pool needs max_boxes >= 1 and warm >= 0")
        self.stats = BoxStats()
        self._max, self._warm, self._run = max_boxes, warm, run
        self._shelves: dict[str, _Shelf] = {}
        self._waiters: list[_Waiter] = []
        self._lent: set[GuestBox] = set()
        self._starts: set[asyncio.Task[None]] = set()
        self._closes: set[asyncio.Task[None]] = set()
        self._gate = asyncio.Semaphore(STARTS_AT_ONCE)
        self._open = False

    async def __aenter__(self) -> Pool:
        """Opens the pool, and removes what dead processes of ours left on this machine."""
        try:
            await to_the_end(asyncio.to_thread(cleanup.collect))
        except InfrastructureError as error:
            _LOG.warning("what earlier runs left could not be removed: %s", error)
        self._open = True
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Removes every box, those still lent too, and returns when all are gone."""
        self._open = False
        for waiter in self._waiters:
            if not waiter.box.done():
                waiter.box.set_exception(BoxStartError("the pool was closed meanwhile"))
        self._waiters.clear()
        for task in self._starts:
            task.cancel()
        for box in [*self._lent, *(b for shelf in self._shelves.values() for b in shelf.ready)]:
            self._retire(box)
        self._shelves.clear()
        await to_the_end(self._drain())

    def lease(self, spec: BoxSpec, *, snapshot: Snapshot | None = None) -> Lease:
        """The right to one box of `spec`, taken on entering and given back on leaving.

        Args:
            snapshot: a frozen workspace that the box starts with, instead of an empty one.
        """
        return Lease(self, spec, snapshot)

    def prepare(self, spec: BoxSpec) -> None:
        """Starts spares of `spec` ahead of the first lease. Returns at once."""
        self._shelf(spec)
        self._balance()

    async def take(self, spec: BoxSpec) -> GuestBox:
        """A fresh box, the caller's alone until `give_back`; prefer `lease`.

        Raises:
            MissingError: no engine, or no image.
            BoxStartError: it could not be started, with all tries used up.
        """
        if not self._open:
            raise RuntimeError("a pool lends boxes only inside `async with`")
        since = time.monotonic()
        waiter = _Waiter(self._shelf(spec), asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        self._balance()
        try:
            box = await waiter.box
        except asyncio.CancelledError:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif waiter.box.done() and not waiter.box.cancelled() and not waiter.box.exception():
                self._lent.discard(waiter.box.result())
                waiter.shelf.ready.appendleft(waiter.box.result())  # nobody has touched it
            self._balance()
            raise
        box.queue_seconds = time.monotonic() - since
        self.stats.queue_seconds += box.queue_seconds
        box.hand_out()
        self._balance()
        return box

    def give_back(self, box: GuestBox) -> None:
        """Removes a box that was lent, in the background. Calling it twice is harmless."""
        if box in self._lent:
            self._retire(box)

    def _shelf(self, spec: BoxSpec) -> _Shelf:
        shelf = self._shelves.setdefault(spec.model_dump_json(), _Shelf(spec))
        shelf.wanted = True
        return shelf

    def _balance(self) -> None:
        """Hands out what is ready, then starts what is missing. Called after every change."""
        if not self._open:
            return
        for waiter in list(self._waiters):
            if box := self._next(waiter.shelf):
                self._waiters.remove(waiter)
                self._lent.add(box)
                waiter.box.set_result(box)
        for waiter in self._waiters:
            missing = sum(w.shelf is waiter.shelf for w in self._waiters) - waiter.shelf.starting
            if missing > 0 and self.stats.live < self._max:
                self._start(waiter.shelf)
        self._make_room()
        if self._waiters:
            return
        for shelf in self._shelves.values():
            short = self._warm - len(shelf.ready) - shelf.starting if shelf.wanted else 0
            for _ in range(min(short, self._max - self.stats.live)):
                self._start(shelf)

    def _next(self, shelf: _Shelf) -> GuestBox | None:
        """A ready box that is alive and has not waited too long."""
        while shelf.ready:
            box = shelf.ready.popleft()
            if box.alive and time.monotonic() - box.born < cleanup.WARM_SECONDS / 2:
                return box
            self._retire(box)
        return None

    def _make_room(self) -> None:
        """Removes spares that nobody waits for, where their places are needed."""
        short = len(self._waiters) - len(self._closes)
        short -= sum(shelf.starting for shelf in self._shelves.values())
        for shelf in self._shelves.values():
            while short > 0 and shelf.ready and self.stats.live >= self._max:
                self._retire(shelf.ready.popleft())
                short -= 1

    def _start(self, shelf: _Shelf) -> None:
        shelf.starting += 1
        self.stats.live += 1
        self._spawn(self._starts, self._started(shelf))

    async def _started(self, shelf: _Shelf) -> None:
        try:
            async with self._gate:
                box = await self._start_patiently(shelf.spec)
        except BaseException as error:
            self.stats.live -= 1
            if isinstance(error, AirError):
                self._failed(shelf, error)
            else:
                self._failed(shelf, BoxStartError(f"a box did not start: {error!r}"))
                raise
        else:
            self.stats.started += 1
            image = shelf.spec.image
            self.stats.by_image[image] = self.stats.by_image.get(image, 0) + 1
            if self._open:
                shelf.ready.append(box)
            else:
                self._retire(box)
        finally:
            shelf.starting -= 1
            self._balance()

    async def _start_patiently(self, spec: BoxSpec) -> GuestBox:
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type(TransientStartError),
            wait=wait_random_exponential(multiplier=0.2, max=5),
            stop=_hopeless,
            reraise=True,
        ):
            with attempt:
                return await start_box(spec, run=self._run)
        raise AssertionError("the last attempt returns or raises")

    def _failed(self, shelf: _Shelf, error: AirError) -> None:
        """Tells the one who waits longest; no spares are started until somebody asks again."""
        if not self._open:
            return
        self.stats.failed += 1
        shelf.wanted = False
        for waiter in self._waiters:
            if waiter.shelf is shelf:
                self._waiters.remove(waiter)
                if not waiter.box.done():
                    waiter.box.set_exception(error)
                return
        _LOG.warning("a spare box did not start: %s", error)

    def _retire(self, box: GuestBox) -> None:
        self._lent.discard(box)
        self._spawn(self._closes, self._closed(box))

    async def _closed(self, box: GuestBox) -> None:
        try:
            await box.close()
        except AirError as error:  # its guest has ended; what is left is collected later
            _LOG.warning("%s", error)
        finally:
            self.stats.closed += 1
            self.stats.live -= 1
            asyncio.get_running_loop().call_soon(self._balance)

    def _spawn(self, group: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        group.add(task)
        task.add_done_callback(group.discard)

    async def _drain(self) -> None:
        while tasks := [*self._starts, *self._closes]:
            await asyncio.wait(tasks)


def _hopeless(state: RetryCallState) -> bool:
    if state.outcome and isinstance(state.outcome.exception(), EngineAwayError):
        return (state.seconds_since_start or 0.0) > AWAY_SECONDS
    return state.attempt_number >= ATTEMPTS


class Lease:
    """One box of a pool, from entering to leaving."""

    def __init__(self, pool: Pool, spec: BoxSpec, snapshot: Snapshot | None = None) -> None:
        self._pool, self._spec, self._snapshot = pool, spec, snapshot
        self._box: GuestBox | None = None

    @property
    def queue_seconds(self) -> float:
        """Seconds from asking for the box to having it; 0 before."""
        return 0.0 if self._box is None else self._box.queue_seconds

    async def __aenter__(self) -> Box:
        if self._box is not None:
            raise RuntimeError("a lease is used once")
        self._box = await self._pool.take(self._spec)
        if self._snapshot is not None:
            try:
                await self._box.restore(self._snapshot)
            except BaseException:
                self._pool.give_back(self._box)
                raise
        return self._box

    async def __aexit__(self, *exc: object) -> None:
        assert self._box is not None
        self._pool.give_back(self._box)
