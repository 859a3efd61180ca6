"""Lends boxes (containers in which code runs) to HTTP requests. While a request has a box, no other request
uses it. Afterwards, the box is reset or removed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from air.errors import AirError
from air.sandbox.contract.box import Box, BoxSpec
from air.sandbox.docker import engine
from air.sandbox.docker.engine_errors import EngineAwayError
from air.sandbox.pool.box_pool import Pool
from air.serve.http.metrics import Metrics

_QUEUE = "air_serve_queue_seconds"


class NoBoxInTime(AirError):
    """Error: all boxes (containers) are in use, and none became free within the time for which the request
    could wait."""


class QueueFull(NoBoxInTime):
    """Error: no further request may wait, because the maximum number of requests is waiting already."""


class Boxes:
    """The boxes (containers in which code runs) of one server, shared by all of its protocols. Use this
    object with `async with`: at the end of the block, all boxes are closed.

    At most `max_boxes` boxes exist at the same time; `warm` of them are started in advance. At most `queue`
    requests wait for a box. `fresh` says whether each request gets a new box.
    """

    def __init__(
        self, max_boxes: int, warm: int, metrics: Metrics, *, fresh: bool = False, queue: int = 1000
    ) -> None:
        self.max_boxes, self.max_queued = max_boxes, queue
        self.pool = Pool(max_boxes, warm=min(warm, max_boxes))
        """The pool that starts, resets and removes the boxes (containers). The log and `/health` report its
        statistics."""
        self.fresh = fresh
        """Whether each request gets a new box (container). If false, a box is reset after each request, and
        then used for other requests."""
        self.lent = 0
        self.queued = 0
        self._metrics = metrics
        stats = self.pool.stats
        metrics.gauge("air_serve_boxes", "Boxes that exist.", lambda: stats.live)
        metrics.gauge("air_serve_boxes_lent", "Boxes that requests use.", lambda: self.lent)
        metrics.gauge("air_serve_boxes_max", "Most boxes at once.", lambda: self.max_boxes)
        metrics.gauge("air_serve_boxes_started", "Boxes started so far.", lambda: stats.started)
        metrics.gauge(
            "air_serve_boxes_failed", "Starts of boxes that failed so far.", lambda: stats.failed
        )
        metrics.gauge("air_serve_boxes_reset", "Resets of boxes so far.", lambda: stats.reused)
        metrics.gauge(
            "air_serve_boxes_not_reset",
            "Boxes so far that could not be reset, and were removed.",
            stats.refused.total,
        )
        metrics.gauge("air_serve_queued", "Requests that wait for a box.", lambda: self.queued)
        metrics.gauge("air_serve_queued_max", "Most such requests.", lambda: self.max_queued)

    async def __aenter__(self) -> Boxes:
        await self.pool.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.pool.__aexit__(*exc)

    def _check_queue(self) -> None:
        # A request counts as waiting for a moment even if a box is free for it.
        free = max(0, self.max_boxes - self.lent)
        if self.queued >= self.max_queued + free:
            text = "Requests that were refused because too many waited for a box."
            self._metrics.add("air_serve_queue_full_total", text)
            raise QueueFull(
                f"all {self.max_boxes} boxes are in use, and {self.queued} requests wait"
            )

    @asynccontextmanager
    async def lend(self, spec: BoxSpec, *, within: float) -> AsyncIterator[Box]:
        """Async context manager: yields a box (container) with the settings `spec`. It is new, or has been
        reset, so that nothing of earlier requests is left in it.

        At the end of the block, all processes in the box are killed, and the box is reset or removed. If the
        block raised an exception, the box is removed.

        Raises NoBoxInTime if no box becomes free within `within` seconds; but if the reason is that the
        container engine does not respond, raises EngineAwayError. Raises QueueFull if too many requests wait
        already, and also the errors of `Pool.take`.
        """
        since = time.monotonic()
        self._check_queue()
        self.queued += 1
        try:
            async with asyncio.timeout(max(0.0, within)):
                box = await self.pool.take(spec)
        except TimeoutError:
            if await asyncio.to_thread(engine.away):
                raise EngineAwayError("the Docker engine does not answer") from None
            raise NoBoxInTime(
                f"no box was free within {within:.1f} s: all {self.max_boxes} are in use"
            ) from None
        finally:
            self.queued -= 1
            waited = time.monotonic() - since
            self._metrics.observe(_QUEUE, "Seconds that requests waited for a box.", waited)
        self.lent += 1
        try:
            yield box
            if not self.fresh:
                self.pool.give_back_for_reuse(box)
        except BaseException:  # cancellation too: a command may still run
            self.pool.give_back(box)
            raise
        finally:
            self.lent -= 1
            if self.fresh:
                self.pool.give_back(box)
