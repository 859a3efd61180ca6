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

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from air.errors import ConfigError
from air.sandbox.contract.box import BoxSpec
from air.source_code import code_of_function
from air.tools.base import Tool, ToolContext
from air.tools.episode_tools import OpenTools
from air.tools.resource_pool import ResourcePool
from air.tools.shared_semaphore import Pool
from air.tools.states import make_state


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
        makes the tools' states or borrows them. Raises UsageError if `context` lacks something that a tool
        needs, InfrastructureError if a state cannot be made, or not within its time limit, and
        HangingToolError if so many earlier attempts to make a state still run that no further attempt can
        begin."""
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
        pools = {places for tool in self.tools.values() if (places := tool.places)}
        return sorted(pools, key=lambda pool: pool.number)


async def _state(tool: Tool, context: ToolContext) -> Any:
    """Makes the state that `tool` keeps for one episode, or borrows it from the tool's `ResourcePool`, and
    returns it. `context` describes the episode. Raises what `make_state` raises."""
    assert tool.state is not None
    if isinstance(tool.state, ResourcePool):
        return await tool.state.borrow(context, tool.name, tool.state_limit)
    return await make_state(tool.state, (context,), tool.name, tool.state_limit)


def _digest(tool: Tool) -> str:
    settings = [tool.schema, tool.max_length, tool.seconds, tool.digest]
    pool = tool.state if isinstance(tool.state, ResourcePool) else None
    made = [tool.state] if pool is None else [pool.factory, pool.reset]
    sources = [code_of_function(one) for one in (tool.function, *made) if one is not None]
    return json.dumps([*settings, *sources], sort_keys=True)
