"""A limit on how many users may use a shared resource at the same time. It holds across all event loops of
this process."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import deque

_numbers = itertools.count()


class Pool:
    """A pool of places of a shared resource, a semaphore in other words. `acquire` waits for a free place;
    waiters are served in order."""

    def __init__(self, size: int) -> None:
        self.number = next(_numbers)
        """A unique number. Episodes acquire places in several pools in the order of these numbers, which
        prevents deadlocks."""
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
        """Frees a place, or passes it to the longest waiter."""
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
