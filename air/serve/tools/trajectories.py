"""Keeps the trajectories of a tool server's clients. Each trajectory id has a session, until the client or a
time limit ends the trajectory."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from air.aio import wait_shielded
from air.errors import AirError, BoxEndedError
from air.serve.metrics import Metrics
from air.serve.tools.sessions import Session, Sessions
from air.serve.tools.settings import ToolsConfig
from air.tools import ToolResult

MOST_REMEMBERED = 10_000
"""The maximum number of remembered ids of trajectories that ended without a request of their client, for
instance at a time limit. A further request with such an id gets an error instead of a new trajectory."""
_LOG = logging.getLogger(__name__)


class TrajectoryLost(AirError):
    """Error: the trajectory that a request names has ended without its client's request, for instance at a
    time limit, so the state of its tools is lost."""


class Trajectory:
    """A sequence of a client's tool calls under one id (`name`), which share the state of their tools. The
    first call opens the tools. `fields` are the fields of the request that tools may read."""

    def __init__(self, name: str, fields: Mapping[str, Any]) -> None:
        self.name, self.fields = name, fields
        self.began = self.used = time.monotonic()
        self.uses = 0
        """The number of running requests that use this trajectory. While there are any, no time limit ends
        the trajectory."""
        self.ended = False
        self.session: Session | None = None
        self.turn = asyncio.Lock()
        self.stack = AsyncExitStack()


class Trajectories:
    """All open trajectories (sequences of a client's tool calls that share their state) of one server, by
    id."""

    def __init__(self, sessions: Sessions, config: ToolsConfig, metrics: Metrics) -> None:
        self._sessions, self._config, self._metrics = sessions, config, metrics
        self.open: dict[str, Trajectory] = {}
        self._lost: OrderedDict[str, str] = OrderedDict()
        self._endings: set[asyncio.Task[None]] = set()
        metrics.gauge("air_serve_trajectories", "Open trajectories.", lambda: len(self.open))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Async context manager: ends trajectories that reach a time limit during the block, and all others
        at the end of the block."""
        sweep = asyncio.create_task(self._sweep())
        try:
            yield
        finally:
            sweep.cancel()
            await asyncio.gather(sweep, return_exceptions=True)
            for name in list(self.open):
                self._end(name, "stopped")
            await wait_shielded(asyncio.gather(*self._endings))

    @asynccontextmanager
    async def used(self, fields: Mapping[str, Mapping[str, Any]]) -> AsyncIterator[None]:
        """Async context manager: protects trajectories from time limits during the block, and creates those
        that do not exist yet (all of them or none). `fields` maps each trajectory's id to those fields of the
        request that tools may read.

        Raises TrajectoryLost, and the errors of `Sessions.admit`; then no trajectory was created.
        """
        self._check(fields)
        if count := sum(name not in self.open for name in fields):
            await self._sessions.admit(count, self._config.queue_seconds)
            # Meanwhile another request may have begun some of them, or some may have ended.
            new = [name for name in fields if name not in self.open]
            extra = len(new) - count
            if extra < 0:
                self._sessions.free(-extra)
            elif extra:
                self._sessions.free(count)
                raise TrajectoryLost("trajectories of this request ended while it waited")
            try:
                self._check(fields)
            except TrajectoryLost:
                self._sessions.free(len(new))
                raise
            self.open |= {name: Trajectory(name, fields[name]) for name in new}
        users = [self.open[name] for name in fields]
        for one in users:
            one.uses += 1
        try:
            yield
        finally:
            for one in users:
                one.uses -= 1
                one.used = time.monotonic()

    def _check(self, names: Iterable[str]) -> None:
        for name in names:
            if name in self._lost:
                raise TrajectoryLost(
                    f"trajectory {name!r:.100}: {self._lost[name]}; its state is gone: begin one with "
                    "another id, or send its `finish`"
                )

    async def call(self, name: str, tool: str, arguments: Any) -> ToolResult:
        """Calls the tool `tool` in the trajectory with the id `name`. Call this method inside the block of
        `used`. Calls in one trajectory run one after the other.

        Raises BoxEndedError if the trajectory's own commands ended its box, InfrastructureError if something
        failed that the agent cannot cause, HangingToolError if calls of the tool hang in too many
        trajectories, and TrajectoryLost if an earlier call of the same request ended the trajectory.
        """
        trajectory = self.open.get(name)
        if trajectory is None:
            raise TrajectoryLost(f"trajectory {name!r:.100} ended before this action")
        async with trajectory.turn:
            if trajectory.ended:
                raise TrajectoryLost(f"trajectory {name!r:.100} ended before this action")
            try:
                if trajectory.session is None:
                    opened = self._sessions.open(name, trajectory.fields)
                    trajectory.session = await trajectory.stack.enter_async_context(opened)
                return await trajectory.session.call(tool, arguments)
            except BoxEndedError:
                self._end(name, "box ended")
                raise
            except BaseException as error:  # cancellation too: nobody knows what the call has done
                left = isinstance(error, asyncio.CancelledError)
                why = "its client left during a call" if left else "the server failed in it"
                self._end(name, "left" if left else "failed", lost=why)
                raise

    async def finish(self, name: str) -> None:
        """Ends a trajectory at its client's request. Does nothing if there is no such trajectory."""
        self._lost.pop(name, None)
        ending = self._end(name, "finished")
        if ending is not None:
            await asyncio.shield(ending)

    def _end(self, name: str, how: str, *, lost: str = "") -> asyncio.Task[None] | None:
        """Ends the trajectory with the id `name` in the background. Returns the asyncio task that does so;
        None if there is no such trajectory. `how` is the reason in the metrics. If `lost` is not empty, later
        requests for this trajectory get an error with this text. If `lost` is empty, they start a new
        trajectory."""
        trajectory = self.open.pop(name, None)
        if trajectory is None:
            return None
        trajectory.ended = True
        text = "Trajectories that ended, by why."
        self._metrics.add("air_serve_trajectories_total", text, how=how)
        if lost:
            self._lost[name] = lost
            while len(self._lost) > MOST_REMEMBERED:
                self._lost.popitem(last=False)
        ending = asyncio.create_task(self._close(trajectory))
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)
        return ending

    async def _close(self, trajectory: Trajectory) -> None:
        try:
            async with trajectory.turn:  # a call that runs is cancelled, or ends by its own limits
                await trajectory.stack.aclose()
        except Exception as error:  # what the client got stands already
            _LOG.warning("the end of trajectory %.100r: %s", trajectory.name, error)
        finally:
            self._sessions.free()

    async def _sweep(self) -> None:
        """Runs until it is cancelled: ends the trajectories that have reached a time limit."""
        idle, age = self._config.idle_seconds, self._config.session_seconds
        while True:
            await asyncio.sleep(min(idle, age) / 10)
            now = time.monotonic()
            for one in [one for one in self.open.values() if not one.uses]:
                if now - one.began > age:
                    self._end(one.name, "expired", lost=f"it ended after {age:g} s")
                elif now - one.used > idle:
                    self._end(
                        one.name, "expired", lost=f"it ended after {idle:g} s without a request"
                    )
