"""Limits how many requests a server runs at the same time, and how many wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from air.serve.http.boxes import QueueFull
from air.serve.http.metrics import Metrics


class RequestQueue:
    """Limits the requests of one server. At most `at_once` requests run, and at most `most_waiting` further
    ones wait. They start in the order of their arrival."""

    def __init__(self, at_once: int, most_waiting: int, metrics: Metrics) -> None:
        self.at_once, self.most_waiting = at_once, most_waiting
        self.running = self.waiting = 0
        self._gate = asyncio.Semaphore(at_once)
        self._metrics = metrics
        metrics.gauge("air_serve_running", "Requests that run.", lambda: self.running)
        metrics.gauge("air_serve_running_max", "Most such requests.", lambda: self.at_once)
        metrics.gauge("air_serve_queued", "Requests that wait.", lambda: self.waiting)
        metrics.gauge("air_serve_queued_max", "Most such requests.", lambda: self.most_waiting)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Async context manager around the work of one request: before the block, waits until fewer than
        `at_once` requests run. Raises QueueFull if `most_waiting` requests are waiting already."""
        if self._gate.locked() and self.waiting >= self.most_waiting:
            text = "Requests that were refused because too many waited."
            self._metrics.add("air_serve_queue_full_total", text)
            raise QueueFull(f"{self.running} requests run, and {self.waiting} wait")
        self.waiting += 1
        try:
            await self._gate.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self._gate.release()
