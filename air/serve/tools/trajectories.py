"""Keeps the trajectories of a tool server's clients. A trajectory is a client's sequence of tool calls that
share the state of their tools. It is open until the client or a time limit ends it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from air.aio import wait_shielded
from air.errors import AirError, BoxEndedError
from air.serve.http.metrics import Metrics
from air.serve.tools.sessions import Session, Sessions
from air.serve.tools.settings import ToolsConfig
from air.tools import ToolResult

MOST_REMEMBERED = 10_000
"""The server remembers at most this number of ids of trajectories that the server itself has ended, for
instance at a time limit. A later request with such an id gets an error, and does not begin a new
trajectory."""
_LOG = logging.getLogger(__name__)


class TrajectoryLost(AirError):
    """Error: the trajectory that a request names has ended already, usually because the server ended it at a
    time limit. The state of its tools is lost."""


class Trajectory:
    """A client's sequence of tool calls with the same id (`name`), which share the state of their tools. The
    first call opens the tools. `fields` are the fields of the client's request that tools may read."""

    def __init__(self, name: str, fields: Mapping[str, Any]) -> None:
        self.name, self.fields = name, fields
        self.began = self.used = time.monotonic()
        self.uses = 0
        """The number of running requests that use this trajectory. While it is not 0, no time limit ends the
        trajectory."""
        self.ended = False
        self.lost = False
        """Whether the trajectory has ended without its client's wish, so that later requests with its id get
        an error."""
        self.session: Session | None = None
        self.turn = asyncio.Lock()
        self.stack = AsyncExitStack()


class Trajectories:
    """All open trajectories of one server, by id (`open`). A trajectory is a sequence of a client's tool
    calls that share the state of their tools."""

    def __init__(self, sessions: Sessions, config: ToolsConfig, metrics: Metrics) -> None:
        self._sessions, self._config, self._metrics = sessions, config, metrics
        self.open: dict[str, Trajectory] = {}
        self._lost: OrderedDict[str, str] = OrderedDict()
        self._endings: set[asyncio.Task[None]] = set()
        metrics.gauge("air_serve_trajectories", "Open trajectories.", lambda: len(self.open))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Async context manager: during the block, ends the trajectories (sequences of a client's tool calls)
        that reach a time limit. At the end of the block, ends all others."""
        sweep = asyncio.create_task(self._sweep())
        try:
            yield
        finally:
            sweep.cancel()
            await asyncio.gather(sweep, return_exceptions=True)
            for one in list(self.open.values()):
                self._end(one, "stopped")
            await wait_shielded(asyncio.gather(*self._endings))

    def present(self, names: Iterable[str]) -> dict[str, Trajectory]:
        """Returns the trajectories that are open now and whose ids are in `names`, as a dict by id."""
        return {name: self.open[name] for name in names if name in self.open}

    @asynccontextmanager
    async def used(
        self, fields: Mapping[str, Mapping[str, Any]]
    ) -> AsyncIterator[Mapping[str, Trajectory]]:
        """Async context manager: yields trajectories (sequences of a client's tool calls) as a dict by id.
        During the block, no time limit ends them. `fields` maps the id of each trajectory to those fields of
        the request that tools may read. Trajectories that do not exist yet are created.

        Raises TrajectoryLost if the server has ended one of the trajectories, and the errors of
        `Sessions.admit`; then no trajectory was created.
        """
        self._check(fields)
        present = self.present(fields)
        if count := len(fields) - len(present):
            await self._sessions.admit(count, self._config.queue_seconds)
            new = self._ids_to_create(fields, count, present.values())
            self.open |= {name: Trajectory(name, fields[name]) for name in new}
        users = self.present(fields)
        for one in users.values():
            one.uses += 1
        try:
            yield users
        finally:
            for one in users.values():
                one.uses -= 1
                one.used = time.monotonic()

    def _ids_to_create(
        self, names: Collection[str], count: int, present: Iterable[Trajectory]
    ) -> Sequence[str]:
        """Returns those ids in `names` for which trajectories must be created, after a wait in which `count`
        sessions (sets of tools) were reserved for them. Other requests may have created some of them during
        the wait; the sessions for these are given up. `present` are the trajectories that were open before
        the wait. Raises TrajectoryLost, and gives up all `count` sessions, if one of `present` has ended
        during the wait, or if the server has ended one of `names`."""
        try:
            if any(one.ended for one in present):
                raise TrajectoryLost("trajectories of this request ended while it waited")
            self._check(names)
        except TrajectoryLost:
            self._sessions.free(count)
            raise
        new = [name for name in names if name not in self.open]
        self._sessions.free(count - len(new))
        return new

    def _check(self, names: Iterable[str]) -> None:
        for name in names:
            if name in self._lost:
                raise TrajectoryLost(
                    f"trajectory {name!r:.100}: {self._lost[name]}; its state is gone: begin one with "
                    "another id, or send its `finish`"
                )

    async def call(self, trajectory: Trajectory, tool: str, arguments: Any) -> ToolResult:
        """Calls the tool `tool` in `trajectory`, and returns its result. Call this method only inside the
        block of `used` that yielded `trajectory`. Calls in one trajectory run one after the other.

        Raises BoxEndedError if the trajectory's own commands ended its box (container), InfrastructureError
        if something failed that the agent cannot cause, HangingToolError if calls of the tool hang in too
        many trajectories, and TrajectoryLost if the trajectory has ended before this call began.
        """
        name = trajectory.name
        async with trajectory.turn:
            if trajectory.ended:
                raise TrajectoryLost(f"trajectory {name!r:.100} ended before this action")
            try:
                if trajectory.session is None:
                    opened = self._sessions.open(name, trajectory.fields)
                    trajectory.session = await trajectory.stack.enter_async_context(opened)
                return await trajectory.session.call(tool, arguments)
            except BoxEndedError:
                self._end(trajectory, "box ended")
                raise
            except BaseException as error:  # cancellation too: nobody knows what the call has done
                left = isinstance(error, asyncio.CancelledError)
                why = "its client left during a call" if left else "the server failed in it"
                self._end(trajectory, "left" if left else "failed", lost=why)
                raise

    async def finish(self, name: str, trajectory: Trajectory | None) -> None:
        """Ends a trajectory because its client asks for it, and waits for its end. `name` is its id.
        `trajectory` is the trajectory that was open under this id when the request came (None: there was
        none); if it has ended since then, a newer trajectory with the same id is left alone. If the server
        itself had ended the trajectory, the id becomes usable again for a new one."""
        if trajectory is None or trajectory.lost:
            self._lost.pop(name, None)
        ending = None if trajectory is None else self._end(trajectory, "finished")
        if ending is not None:
            await asyncio.shield(ending)

    def _end(
        self, trajectory: Trajectory, how: str, *, lost: str = ""
    ) -> asyncio.Task[None] | None:
        """Starts to end a trajectory, and returns the asyncio task that does so; None if the trajectory has
        ended already. `how` is the reason in the metrics. If `lost` is not empty, later requests with the
        trajectory's id get an error with this text; otherwise, they begin a new trajectory."""
        if trajectory.ended:
            return None
        name = trajectory.name
        del self.open[name]
        trajectory.ended = True
        text = "Trajectories that ended, by why."
        self._metrics.add("air_serve_trajectories_total", text, how=how)
        if lost:
            trajectory.lost = True
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
        """Ends the trajectories that reach a time limit, until it is cancelled."""
        idle, age = self._config.idle_seconds, self._config.session_seconds
        while True:
            await asyncio.sleep(min(idle, age) / 10)
            now = time.monotonic()
            for one in [one for one in self.open.values() if not one.uses]:
                if now - one.began > age:
                    self._end(one, "expired", lost=f"it ended after {age:g} s")
                elif now - one.used > idle:
                    self._end(one, "expired", lost=f"it ended after {idle:g} s without a request")
