"""Defines `Pool`, a semaphore that works across all event loops of this process. It limits how many callers
may use a shared resource at the same time."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import deque

_numbers = itertools.count()


def new_number() -> int:
    """Returns a new number for a `Pool`."""
    return next(_numbers)


class Pool:
    """A semaphore that works across all event loops of this process. `size` callers can hold a place at the
    same time: `acquire` waits for a free place, and `release` gives the place back. Waiting callers get
    places in the order in which they came. `number` is a number of `new_number`; None: a new one."""

    def __init__(self, size: int, number: int | None = None) -> None:
        self.number = new_number() if number is None else number
        """A number, which only the pools of one `ResourcePool` in several loops share. An episode that needs
        places in several pools acquires them in the order of these numbers, which prevents deadlocks."""
        self.size = self._free = size
        self._waiters: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()
        self._lock = threading.Lock()

    async def acquire(self) -> None:
        """Waits for a free place and occupies it. A cancelled call occupies no place."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._free:
                self._free -= 1
                return
            place = loop.create_future()
            waiter = (loop, place)
            self._waiters.append(waiter)
        try:
            await place
        except asyncio.CancelledError:
            with self._lock:
                waits = waiter in self._waiters
                if waits:
                    self._waiters.remove(waiter)
            if not waits:
                self.release()  # the place was given while the cancellation was on its way
            raise

    def release(self) -> None:
        """Gives a place back. The call of `acquire` that has waited longest gets it; if none waits, the place
        becomes free."""
        while True:
            with self._lock:
                if not self._waiters:
                    self._free += 1
                    return
                loop, place = self._waiters.popleft()
            try:
                loop.call_soon_threadsafe(_give, place)
                return
            except RuntimeError:  # the waiter's loop is closed
                continue


def _give(place: asyncio.Future[None]) -> None:
    if not place.done():  # a cancelled waiter has released the place itself
        place.set_result(None)
