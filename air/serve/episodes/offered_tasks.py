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
    """Returns the schema of a tool in the form of OpenAI's `tools`. `arguments` maps the name of each
    argument of the tool to a description. All arguments are texts, and none may be left out."""
    properties = {key: {"type": "string", "description": text} for key, text in arguments.items()}
    parameters = {"type": "object", "properties": properties, "required": list(arguments)}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


ACT = tool("act", "Carries out an action, as the task describes it.", answer="The action.")
"""The tool that an episode server offers for a world that has no tools. The tool's argument is the action as
text."""


class InvalidAction(Exception):
    """Error: a client's message or tool call is not a valid action of the task. The error's text is sent to
    the client as the observation."""


class OfferedTask(Protocol):
    """Interface of one task that an episode server (for OpenEnv and ORS clients) offers: its tools, limits,
    actions and rewards."""

    @property
    def id(self) -> str:
        """The task's id."""
        ...

    @property
    def tools(self) -> Sequence[Schema]:
        """The tools that a client can call, in the form of OpenAI's `tools`."""
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
        """The reward that a client gets for an action that the task rejected: 0, or None in a task that does
        not reward each action."""
        ...

    def open(self, seed: int) -> AbstractAsyncContextManager[tuple[World[Action], str]]:
        """Async context manager: yields a world after its reset, and the first text for the agent
        (instructions and first observation). Leaving the block frees the world's resources."""
        ...

    def action_of_text(self, message: str) -> Action:
        """Converts a text message of the agent to an action. Raises InvalidAction if the message is not a
        valid action."""
        ...

    def action_of_call(self, name: str, arguments: Mapping[str, Any]) -> Action:
        """Converts the agent's call of one of the task's tools to an action. Raises InvalidAction if the
        arguments are invalid."""
        ...

    def reward(self, step: Step) -> float | None:
        """Returns the reward of a step of the world; None if the step has none. In a research task, only a
        step with a validate or submit has a reward."""
        ...

    async def at_limit(self, world: World[Action]) -> float | None:
        """Returns the reward for an end of the episode at its limit of actions or time, or by an action
        without a reward, in addition to the reward of the last action. Returns None if there is no such
        reward. `world` is the world that `open` yielded. In a research task, this method validates the
        artefact, which counts as missing if the agent has ended its box."""
        ...


@dataclass(frozen=True)
class OfferedWorld:
    """The `OfferedTask` of a task that is not a research task, such as a game."""

    task: WorldTask
    max_turns: int
    seconds: float
    env: ResearchEnv | None = None
    """The environment that provides the world with a box; None if the world needs no box."""
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
    """Returns the value of the argument `name`. Raises InvalidAction if this argument is missing or not a
    text, or if there are other arguments."""
    value = arguments.get(name)
    if not isinstance(value, str) or len(arguments) != 1:
        raise InvalidAction(f"The arguments must be one text: `{name}`.")
    return value
