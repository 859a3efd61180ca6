"""Sessions of a tool server (`air serve tools`). A session is the set of tools that are opened for one
trajectory (a client's sequence of tool calls) or one chat, with a box (a container or process) if the tools
need one."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from air.aio import wait_shielded
from air.errors import BoxEndedError
from air.sandbox.contract.box import Box
from air.serve.http.boxes import Boxes, NoBoxInTime, QueueFull
from air.serve.http.metrics import Metrics
from air.tools import OpenTools, ToolContext, ToolResult, ToolSet

BOX_SECONDS = 120.0
"""Seconds within which the box (container or process) of a new session must start. They are counted from the
time at which the session is opened; earlier waiting (see `Sessions.admit`) does not count."""

BOX_ENDED = "[the box has ended: what ran in it took more than it may, or killed it]"
"""The result that the model gets instead of a tool's output, if its own commands ended the box (container) of
its tools."""


class Session:
    """The tools that are opened for one trajectory (a client's sequence of tool calls) or one chat. Calls of
    tools that share a state run one after the other."""

    def __init__(self, tools: OpenTools, box: Box | None) -> None:
        self._tools, self._box = tools, box

    async def call(self, name: str, arguments: Any) -> ToolResult:
        """Calls the tool called `name`, and returns its result. Raises BoxEndedError if the agent's own
        commands ended the box (container), InfrastructureError if something failed that an agent cannot
        cause, and HangingToolError if calls of the tool hang in too many sessions."""
        if self._box is None:
            return await self._tools.call(name, arguments)
        async with self._box.attributing():
            return await self._tools.call(name, arguments)


class Sessions:
    """The sessions of one tool server; each is the tools that are opened for one trajectory (sequence of tool
    calls) or chat of a client, with a box if they need one. At most `most` sessions are open at the same
    time, and at most `queue` requests wait until they may open sessions."""

    def __init__(
        self, tools: ToolSet, boxes: Boxes, most: int, queue: int, metrics: Metrics
    ) -> None:
        self.tools, self._boxes = tools, boxes
        self.most, self.most_waiting = most, queue
        self.taken = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._metrics = metrics
        metrics.gauge("air_serve_sessions", "Open sessions.", lambda: self.taken)
        metrics.gauge("air_serve_sessions_max", "Most open sessions.", lambda: self.most)
        metrics.gauge(
            "air_serve_sessions_queued", "Requests that wait for sessions.", lambda: self.waiting
        )

    @property
    def waiting(self) -> int:
        """The number of requests that wait until they may open sessions (sets of tools), because the limit on
        open sessions is reached."""
        return len(self._waiting)

    async def admit(self, count: int, within: float) -> None:
        """Waits until `count` further sessions (sets of tools, each for one trajectory or chat) may be
        opened, and reserves them. Waiting requests are served in the order of their arrival.

        Raises NoBoxInTime if the wait takes longer than `within` seconds or `count` exceeds the server's
        limit, and QueueFull if too many requests wait already.
        """
        if count > self.most:
            raise NoBoxInTime(f"{count} new sessions exceed the {self.most} of this server")
        if not self._waiting and self.taken + count <= self.most:
            self.taken += count
            return
        if len(self._waiting) >= self.most_waiting:
            text = "Requests that were refused because too many waited for sessions."
            self._metrics.add("air_serve_queue_full_total", text)
            raise QueueFull(f"all {self.most} sessions are open, and {self.waiting} requests wait")
        turn = asyncio.get_running_loop().create_future()
        entry = (count, turn)
        self._waiting.append(entry)
        try:
            async with asyncio.timeout(within):
                await turn
        except BaseException as error:  # cancellation too: others wait behind this request
            if entry in self._waiting:
                self._waiting.remove(entry)
                self._let_in()  # what waited behind this request may fit
            elif turn.done() and not turn.cancelled():
                self.free(count)  # the places came while the waiting ended
            if isinstance(error, TimeoutError):
                raise NoBoxInTime(
                    f"{count} sessions were not free within {within:g} s: {self.most} are open"
                ) from None
            raise

    def free(self, count: int = 1) -> None:
        """Gives back `count` sessions that `admit` reserved: they are closed or were never opened. Requests
        that wait in `admit` may then continue."""
        self.taken -= count
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self.taken + self._waiting[0][0] <= self.most:
            count, turn = self._waiting.popleft()
            if not turn.done():
                self.taken += count
                turn.set_result(None)

    @asynccontextmanager
    async def open(
        self, key: str, fields: Mapping[str, Any] | None = None
    ) -> AsyncIterator[Session]:
        """Async context manager: opens and yields a session that `admit` has reserved. The random seed of its
        tools is a hash of `key`. `fields` are the fields of the client's request that tools may read (None:
        no fields).

        Raises InfrastructureError if a box or the state of a tool cannot be created, and HangingToolError if
        calls of a tool hang in too many sessions.
        """
        seed = int.from_bytes(hashlib.sha256(key.encode("utf-8", "replace")).digest()[:4])
        async with AsyncExitStack() as stack:
            box: Box | None = None
            if self.tools.box is not None:
                lent = self._boxes.lend(self.tools.box, within=BOX_SECONDS)
                box = await stack.enter_async_context(lent)
            context = ToolContext(seed=seed, fields=fields or {}, box=box)
            opened = await self.tools.open(context)
            stack.push_async_callback(_close, opened)
            yield Session(opened, box)


async def _close(tools: OpenTools) -> None:
    try:
        await wait_shielded(tools.close())
    except BoxEndedError:  # its states have ended with it
        return
