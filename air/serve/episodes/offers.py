"""Defines `Offer`: one task that a server offers to clients, with its tools, limits, actions and rewards."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from air.actions.base import Action, ToolCall
from air.env.environment import ResearchEnv
from air.worlds.base import Step, World, without_end
from air.worlds.sources import WorldTask

Schema = Mapping[str, Any]


def tool(name: str, description: str, **arguments: str) -> Schema:
    """Returns the schema of a tool whose arguments are texts, each with its description."""
    properties = {key: {"type": "string", "description": text} for key, text in arguments.items()}
    parameters = {"type": "object", "properties": properties, "required": list(arguments)}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


ACT = tool("act", "Carries out an action, as the task describes it.", answer="The action.")
"""The tool of a world that takes text and has no tools of its own."""


class Mistake(Exception):
    """Exception for an action that the task cannot take. The client's agent reads its message."""


class Offer(Protocol):
    """One task that a server offers."""

    @property
    def id(self) -> str:
        """The task's id."""
        ...

    @property
    def tools(self) -> Sequence[Schema]:
        """The tools that a client may call, in the form of OpenAI's `tools`."""
        ...

    @property
    def max_turns(self) -> int:
        """The number of actions after which an episode ends."""
        ...

    @property
    def seconds(self) -> float:
        """The time limit of an episode."""
        ...

    @property
    def no_reward(self) -> float | None:
        """The reward of an action that the task did not accept."""
        ...

    def open(self, seed: int) -> AbstractAsyncContextManager[tuple[World[Action], str]]:
        """Async context manager: yields a world after its reset, and the first observation, which has all
        that the agent must know. Leaving the block frees the world's resources."""
        ...

    def said(self, message: str) -> Action:
        """Converts a message to an action. Raises Mistake if the message is no action."""
        ...

    def called(self, name: str, arguments: Mapping[str, Any]) -> Action:
        """Converts a call of one of `tools` to an action. Raises Mistake if the arguments are wrong."""
        ...

    def reward(self, step: Step) -> float | None:
        """Returns the reward of a step; None if the task gives none for such a step."""
        ...

    async def at_limit(self, world: World[Action], rewards: Sequence[float]) -> float | None:
        """Ends an episode that reached a limit. `rewards` are those of its actions. Returns the reward of
        this end, or None if it has no reward."""
        ...


@dataclass(frozen=True)
class WorldOffer:
    """Offers a world that is no research task."""

    task: WorldTask
    max_turns: int
    seconds: float
    env: ResearchEnv | None = None
    """The environment that lends boxes to the world; None for a world that needs no boxes."""
    no_reward: float | None = 0.0

    @property
    def id(self) -> str:
        return self.task.id

    @property
    def tools(self) -> Sequence[Schema]:
        return self.task.tools or (ACT,)

    @asynccontextmanager
    async def open(self, seed: int) -> AsyncIterator[tuple[World[Action], str]]:
        async with AsyncExitStack() as stack:
            world: World[Action]
            if self.env is None:
                world = self.task.world()
            else:
                world = await stack.enter_async_context(self.env.lend_world(self.task.id))
            stack.push_async_callback(world.close)
            first = await world.reset(seed)
            yield world, "\n\n".join(filter(None, (self.task.instructions, first.text)))

    def said(self, message: str) -> Action:
        if not message.strip():
            raise Mistake("The message is empty.")
        return Action(answer=message)

    def called(self, name: str, arguments: Mapping[str, Any]) -> Action:
        if self.task.tools:
            return Action(tool=ToolCall(name, arguments=dict(arguments)))
        return self.said(text_of(arguments, "answer"))

    def reward(self, step: Step) -> float | None:
        return step.reward

    async def at_limit(self, world: World[Action], rewards: Sequence[float]) -> float | None:
        return without_end(self.task.unanswered, rewards) or None


def text_of(arguments: Mapping[str, Any], name: str) -> str:
    """Returns the only argument of a tool, a text. Raises Mistake if it is missing, or if there are
    others."""
    value = arguments.get(name)
    if not isinstance(value, str) or len(arguments) != 1:
        raise Mistake(f"The arguments must be one text: `{name}`.")
    return value
