"""Defines `OfferedTask`: one task that an episode server (`air serve openenv` or `air serve ors`) offers to
its clients, with its tools, limits, actions and rewards."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from air.actions.base import Action, ToolCall
from air.env.environment import ResearchEnv
from air.env.world_boxes import lent
from air.env.world_episode import WatchedWorld
from air.worlds.base import Step, World
from air.worlds.sources import WorldTask

Schema = Mapping[str, Any]


def tool(name: str, description: str, **arguments: str) -> Schema:
    """Returns the description of a tool in the form of OpenAI's parameter `tools`. `arguments` maps the name
    of each argument of the tool to a description. All arguments are strings, and all are required."""
    properties = {key: {"type": "string", "description": text} for key, text in arguments.items()}
    parameters = {"type": "object", "properties": properties, "required": list(arguments)}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


ACT = tool("act", "Carries out an action, as the task describes it.", answer="The action.")
"""The tool `act`, which an episode server offers for a task that has no tools of its own, such as a game. Its
argument `answer` is the action as text."""


class InvalidAction(Exception):
    """Error: a client's message or tool call is not a valid action of the task. The client gets the error's
    text as the observation."""


class OfferedTask(Protocol):
    """Interface of one task that an episode server (`air serve openenv` or `air serve ors`) offers: its
    tools, limits, actions and rewards."""

    @property
    def id(self) -> str:
        """The task's id."""
        ...

    @property
    def tools(self) -> Sequence[Schema]:
        """The descriptions of the tools that a client can call, in the form of OpenAI's parameter `tools`."""
        ...

    @property
    def max_turns(self) -> int:
        """The maximum number of a client's actions in one episode of this task."""
        ...

    @property
    def seconds(self) -> float:
        """The time limit of an episode in seconds."""
        ...

    @property
    def no_reward(self) -> float | None:
        """The reward for an action that the task rejected: 0, or None for a task in which not every action
        has a reward."""
        ...

    def open(self, seed: int) -> AbstractAsyncContextManager[tuple[World[Action], str]]:
        """Async context manager: yields a world and the first text for the agent. The world is the object
        that runs the episode with the random seed `seed`: it carries out actions and returns observations.
        The text has the task's instructions and perhaps the first observation. Leaving the block frees the
        world's resources."""
        ...

    def action_of_text(self, message: str) -> Action:
        """Converts a text message of the agent to an action of the task. Raises InvalidAction if the message
        does not contain a valid action."""
        ...

    def action_of_call(self, name: str, arguments: Mapping[str, Any]) -> Action:
        """Converts the agent's call of the tool `name`, one of the task's tools, to an action that the task's
        world can carry out. Raises InvalidAction if the arguments are invalid."""
        ...

    def reward(self, step: Step) -> float | None:
        """Returns the reward of one step of an episode; None if this step has no reward. In a research task
        (the agent develops a result, which is graded), only the steps that grade it have a reward: `validate`
        and `submit`."""
        ...

    async def at_limit(self, world: World[Action]) -> float | None:
        """Returns the additional reward of an episode that ends at its limit of actions or time, or by an
        action that has no reward; None if the task gives none. It is added to the reward of the last action.
        `world` is the object that `open` yielded. In a research task, this method grades the agent's present
        result; the result counts as missing if the agent has ended its box (container)."""
        ...


@dataclass(frozen=True)
class OfferedWorld:
    """An `OfferedTask` (a task that a server offers to clients) for all tasks except research tasks, for
    instance for a game. `no_reward` is the reward for an action that the task rejected."""

    task: WorldTask
    max_turns: int
    seconds: float
    env: ResearchEnv | None = None
    """The environment that provides a box (container or process) for the episode; None if the task needs no
    box."""
    no_reward: float | None = 0.0

    @property
    def id(self) -> str:
        return self.task.id

    @property
    def tools(self) -> Sequence[Schema]:
        return self.task.tools or (ACT,)

    @asynccontextmanager
    async def open(self, seed: int) -> AsyncIterator[tuple[World[Action], str]]:
        lending = lent(self.task, None) if self.env is None else self.env.lend_world(self.task.id)
        async with lending as world:
            try:
                first = await world.reset(seed)
                yield world, "\n\n".join(filter(None, (self.task.instructions, first.text)))
            finally:
                await world.close()

    def action_of_text(self, message: str) -> Action:
        if not message.strip():
            raise InvalidAction("The message is empty.")
        return Action(answer=message)

    def action_of_call(self, name: str, arguments: Mapping[str, Any]) -> Action:
        if self.task.tools:
            return Action(tool=ToolCall(name, arguments=dict(arguments)))
        return self.action_of_text(text_of(arguments, "answer"))

    def reward(self, step: Step) -> float | None:
        return step.reward

    async def at_limit(self, world: World[Action]) -> float | None:
        assert isinstance(world, WatchedWorld)
        return world.end_reward or None


def text_of(arguments: Mapping[str, Any], name: str) -> str:
    """Returns the value of the argument `name` of a tool call. Raises InvalidAction unless this is the only
    argument and its value is a string."""
    value = arguments.get(name)
    if not isinstance(value, str) or len(arguments) != 1:
        raise InvalidAction(f"The arguments must be one text: `{name}`.")
    return value
