"""Defines `ToolSet`: the tools of a world (the environment of episodes). Each episode opens the tools for
itself, because tools can have a state for each episode.

    tools = ToolSet(load("calculator"))
    opened = await tools.open(ToolContext(seed=7))
    result = await opened.call("calculator", {"expression": "2 + 2"})
    await opened.close()

A mistake of the model, or an exception in a tool's function, gives a result with the status `error`. Two
kinds of exceptions are raised to the caller instead: an `InfrastructureError` (air or the machine failed),
after which the episode is left out of training, and a `UserCodeError`, such as a `HangingToolError`, which
stops the run.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import logging
from collections.abc import Iterable
from typing import Any

from air.errors import AirError, ConfigError, InfrastructureError
from air.sandbox.contract.box import BoxSpec
from air.source_code import code_of_function
from air.tools import threads
from air.tools.base import Tool, ToolContext
from air.tools.episode_tools import OpenTools, closing
from air.tools.shared_semaphore import Pool

_LOG = logging.getLogger(__name__)
_discarding: set[asyncio.Task[None]] = set()
"""The running asyncio tasks that close unused tool states. They are stored here so that they are not garbage
collected before they end: an event loop holds only weak references to its tasks."""


class ToolSet:
    """The tools of a world (the environment of episodes). The constructor raises ConfigError if two tools
    have the same name, if they need different boxes (sandboxes), or if more than one defines an `outcome`."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self.tools: dict[str, Tool] = {}
        for tool in tools:
            if tool.name in self.tools:
                message = f"two tools have the name {tool.name!r}"
                raise ConfigError(message, where="tools", remedy="leave one out")
            self.tools[tool.name] = tool
        deciding = [name for name, tool in self.tools.items() if tool.outcome is not None]
        if len(deciding) > 1:
            message = f"{' and '.join(deciding)} each decide the final answer"
            raise ConfigError(message, where="tools", remedy="leave all but one out")
        self.box = self._box()
        """The specification of the box that the tools need; None if no tool needs a box."""

    def _box(self) -> BoxSpec | None:
        boxes = {name: tool.box for name, tool in self.tools.items() if tool.box is not None}
        first = next(iter(boxes), "")
        for name, box in boxes.items():
            if box != boxes[first]:
                message = f"`{first}` and `{name}` need different boxes"
                raise ConfigError(message, where="tools", remedy="give them equal settings")
        return boxes.get(first)

    def __bool__(self) -> bool:
        return bool(self.tools)

    @property
    def schemas(self) -> tuple[dict[str, Any], ...]:
        """The JSON schemas of the tools, in the format of the field `tools` in OpenAI's API."""
        return tuple(tool.schema for tool in self.tools.values())

    @property
    def text(self) -> str:
        """The description of all tools for a prompt."""
        return "\n".join(tool.text for tool in self.tools.values())

    @property
    def replays(self) -> bool:
        """Whether for all tools the same seed and the same calls always give the same observations, so that
        recorded episodes can be replayed."""
        return all(tool.replays for tool in self.tools.values())

    @property
    def digest(self) -> str:
        """SHA-256, in hex, of everything on which the tools' results depend: schemas, limits, data, and the
        code in the source files of the tools' functions."""
        parts = [_digest(tool) for tool in self.tools.values()]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    async def open(self, context: ToolContext) -> OpenTools:
        """Opens the tools for an episode: waits for a place in each pool that limits concurrent episodes, and
        makes the tools' states. Raises UsageError if `context` lacks something that a tool needs,
        InfrastructureError if a state cannot be made, or not within its time limit, and HangingToolError if
        so many earlier attempts to make a state still run that no further attempt can begin."""
        if self.box is not None and context.box is None:
            raise ConfigError("the tools need a box, and the world has none", where="tools")
        opened = OpenTools(self.tools)
        try:
            for pool in self._pools():
                await pool.acquire()
                opened.pools.append(pool)
            for tool in self.tools.values():
                if tool.state is not None and tool.state not in opened.states:
                    opened.states[tool.state] = await _state(tool, context)
        except BaseException:  # cancellation too: nobody else closes them
            await opened.close()
            raise
        return opened

    def _pools(self) -> list[Pool]:
        """Returns the pools that limit how many episodes have a state of a tool. Their order is the same in
        all tool sets, which prevents deadlocks between episodes that wait for places."""
        pools = {tool.episodes for tool in self.tools.values() if tool.episodes}
        return sorted(pools, key=lambda pool: pool.number)


async def _state(tool: Tool, context: ToolContext) -> Any:
    """Makes the state that `tool` keeps for one episode, and returns it. `context` is the argument of the
    tool's function `state`. Raises InfrastructureError if the function fails or exceeds its time limit,
    because the agent, which has not acted yet, cannot have caused this. An AirError is raised unchanged."""
    make = tool.state
    assert make is not None
    message = f"the state of the tool {tool.name} could not be made"
    work: threads.ThreadCall | None = None
    if not inspect.iscoroutinefunction(make):
        limit = tool.state_limit
        work = await threads.start(lambda: make(context), make, tool.name, seconds=limit)
    deadline = asyncio.timeout(tool.state_limit)
    try:
        async with deadline:
            return await (make(context) if work is None else _from_thread(work))
    except AirError:
        raise
    except Exception as error:
        if deadline.expired():
            message = f"{message} within {tool.state_limit:g} seconds"
            raise InfrastructureError(message) from None
        raise InfrastructureError(f"{message}: {type(error).__name__}: {error}") from error


async def _from_thread(work: threads.ThreadCall) -> Any:
    """Waits for the thread `work`, which makes a tool's state, and returns the state. Raises the error of the
    thread. If the caller is cancelled, the thread is abandoned, and the state is closed as soon as it is
    made."""
    try:
        outcome = await asyncio.shield(work.outcome)
    except asyncio.CancelledError:
        work.abandon()
        work.outcome.add_done_callback(_discard)
        raise
    if outcome.error is not None:
        raise outcome.error
    return await outcome.value if inspect.isawaitable(outcome.value) else outcome.value


def _discard(made: asyncio.Future[threads.CallOutcome]) -> None:
    """Closes the state of a tool (an object that an episode's calls of the tool share) that a thread has made
    only after the episode stopped waiting for it; no episode will use this state. `made` is the finished
    future with the thread's outcome. If the thread failed, there is nothing to close."""

    async def close() -> None:
        try:
            value = made.result().value
            await closing(await value if inspect.isawaitable(value) else value)()
        except Exception:  # a user's state may raise anything; the episode has failed already
            _LOG.warning("a tool's state could not be closed", exc_info=True)

    if made.cancelled() or made.result().error is not None:
        return
    task = asyncio.get_running_loop().create_task(close())
    _discarding.add(task)
    task.add_done_callback(_discarding.discard)


def _digest(tool: Tool) -> str:
    settings = [tool.schema, tool.max_length, tool.seconds, tool.digest]
    sources = [code_of_function(one) for one in (tool.function, tool.state) if one is not None]
    return json.dumps([*settings, *sources], sort_keys=True)
