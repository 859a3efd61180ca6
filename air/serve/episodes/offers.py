"""The tasks that a server offers to clients, whether they are worlds or research tasks in boxes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from air.actions.base import Action, Ending, ToolCall
from air.env.config import ResearchEnvConfig
from air.env.environment import ResearchEnv
from air.errors import UsageError
from air.serve.episodes.settings import EpisodesConfig
from air.tasks.spec import TaskSpec
from air.worlds import sources
from air.worlds.base import Step, World
from air.worlds.research.world import ResearchWorld, describe

VALIDATION_SEEDS = 1_000_123
"""The seed of a split's first episode that is for validation, far above those of training."""
RESEARCH_TURNS = 50
_ENDINGS: Mapping[str, Ending] = {"validate": "validate", "submit": "submit"}
Schema = Mapping[str, Any]


def tool(name: str, description: str, **arguments: str) -> Schema:
    """Returns the schema of a tool whose arguments are texts, each with its description."""
    properties = {key: {"type": "string", "description": text} for key, text in arguments.items()}
    parameters = {"type": "object", "properties": properties, "required": list(arguments)}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


RESEARCH_TOOLS = (
    tool("bash", "Runs a shell script in the workspace.", script="The script."),
    tool("validate", "Scores the artefact. The reward is the change of the score."),
    tool("submit", "Scores the artefact as validate does, and ends the episode."),
)
"""The tools of a research task."""
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
        """The reward of an action that the task did not take."""
        ...

    def open(self, seed: int) -> AbstractAsyncContextManager[tuple[World[Action], str]]:
        """Async context manager: a world after its reset, and the first observation with all that the agent
        must know. Leaving the block frees what the world needs."""
        ...

    def said(self, message: str) -> Action:
        """Returns the action that a message is. Raises Mistake if it is none."""
        ...

    def called(self, name: str, arguments: Mapping[str, Any]) -> Action:
        """Returns the action that a call of one of `tools` is. Raises Mistake if the arguments are wrong."""
        ...

    def reward(self, step: Step) -> float | None:
        """Returns the reward of a step; None if the task gives none for such a step."""
        ...

    async def at_limit(self, world: World[Action]) -> float | None:
        """Ends an episode that reached a limit, and returns the reward that its end gives; None if none."""
        ...


@dataclass(frozen=True)
class WorldOffer:
    """Offers a world that needs no box."""

    task: sources.WorldTask
    max_turns: int
    seconds: float
    no_reward: float | None = 0.0

    @property
    def id(self) -> str:
        return self.task.id

    @property
    def tools(self) -> Sequence[Schema]:
        return self.task.tools or (ACT,)

    @asynccontextmanager
    async def open(self, seed: int) -> AsyncIterator[tuple[World[Action], str]]:
        world = self.task.make()
        try:
            first = await world.reset(seed)
            yield world, "\n\n".join(filter(None, (self.task.instructions, first.text)))
        finally:
            await world.close()

    def said(self, message: str) -> Action:
        if not message.strip():
            raise Mistake("The message is empty.")
        return Action(answer=message)

    def called(self, name: str, arguments: Mapping[str, Any]) -> Action:
        if self.task.tools:
            return Action(tool=ToolCall(name, arguments=dict(arguments)))
        return self.said(_text(arguments, "answer"))

    def reward(self, step: Step) -> float | None:
        return step.reward

    async def at_limit(self, world: World[Action]) -> float | None:
        return None


@dataclass(frozen=True)
class ResearchOffer:
    """Offers a research task in a box of the pool."""

    spec: TaskSpec
    env: ResearchEnv
    max_turns: int
    seconds: float
    tools: Sequence[Schema] = RESEARCH_TOOLS
    no_reward: float | None = None

    @property
    def id(self) -> str:
        return self.spec.id

    @asynccontextmanager
    async def open(self, seed: int) -> AsyncIterator[tuple[World[Action], str]]:
        async with self.env.lease(self.spec) as box:
            box.note_use(task=self.spec.id)
            world = self.env.world(self.spec, box)
            try:
                await world.reset(seed)
                yield world, describe(self.spec)
            finally:
                await world.abandon()

    def said(self, message: str) -> Action:
        lines = message.strip("\n").split("\n")
        ending = _ENDINGS.get(lines[-1].strip())
        script = "\n".join(lines[:-1] if ending else lines).strip("\n")
        if not script.strip() and ending is None:
            raise Mistake("The message is empty: send a shell script, `validate` or `submit`.")
        for line in script.split("\n"):
            if line.strip() in _ENDINGS:
                raise Mistake(f"`{line.strip()}` must be the last line of the message.")
        return Action(script=script if script.strip() else "", ending=ending)

    def called(self, name: str, arguments: Mapping[str, Any]) -> Action:
        if name == "bash":
            script = _text(arguments, "script")
            if not script.strip():
                raise Mistake("`script` is empty.")
            return Action(script=script)
        if arguments:
            raise Mistake(f"`{name}` takes no arguments.")
        return Action(ending=_ENDINGS[name])

    def reward(self, step: Step) -> float | None:
        return None if step.validation is None else step.validation.delta

    async def at_limit(self, world: World[Action]) -> float | None:
        assert isinstance(world, ResearchWorld)
        validation = await world.validate(automatic=True)
        return validation.delta


def _text(arguments: Mapping[str, Any], name: str) -> str:
    """Returns the one argument of a tool, a text. Raises Mistake if it is missing, or there are others."""
    value = arguments.get(name)
    if not isinstance(value, str) or len(arguments) != 1:
        raise Mistake(f"The arguments must be one text: `{name}`.")
    return value


class Catalogue:
    """All tasks of a server, in the order in which its settings name them."""

    def __init__(self, offers: Sequence[Offer], seeds: int) -> None:
        self.offers = {offer.id: offer for offer in offers}
        self._seeds = seeds

    splits = ("train", "validation")

    def count(self) -> int:
        """Returns the number of episodes in the list of each split."""
        return len(self.offers) * self._seeds

    def entry(self, split: str, index: int) -> tuple[str, int]:
        """Returns the task and the seed of an episode in a split's list, in which tasks alternate.

        Raises UsageError if there is no such split or index.
        """
        if split not in self.splits:
            raise UsageError(f"there is no split {split!r}", remedy="known: train, validation")
        if not 0 <= index < self.count():
            raise UsageError(f"there is no index {index}", remedy=f"0 to {self.count() - 1}")
        seed, number = divmod(index, len(self.offers))
        first = VALIDATION_SEEDS if split == "validation" else 0
        return list(self.offers)[number], first + seed

    def offer(self, task: str) -> Offer:
        """Returns an offered task by its id. Raises UsageError if the server does not offer it."""
        if task not in self.offers:
            raise UsageError(
                f"the server does not offer task {task!r}",
                remedy=f"offered: {', '.join(self.offers)}",
            )
        return self.offers[task]


def _is_world(task: str) -> bool:
    return task.partition(":")[0] in sources.SOURCES and ":" in task


@asynccontextmanager
async def catalogue(config: EpisodesConfig) -> AsyncIterator[Catalogue]:
    """Async context manager: the tasks of the settings, ready to be played.

    Raises UsageError if a task does not exist or cannot be played here.
    """
    worlds = {name: sources.load(name) for name in config.tasks if _is_world(name)}
    research = [name for name in config.tasks if name not in worlds]
    offers: dict[str, Offer] = {
        name: WorldOffer(task, config.max_turns or task.max_turns, config.seconds or task.seconds)
        for name, task in worlds.items()
    }
    async with AsyncExitStack() as stack:
        if research:
            env = ResearchEnv(_env_config(config, research))
            stack.push_async_callback(env.stop)
            await env.start()
            for name in research:
                spec = env.spec(name)
                seconds = config.seconds or spec.limits.episode_seconds
                turns = config.max_turns or RESEARCH_TURNS
                offers[name] = ResearchOffer(spec, env, turns, seconds)
        yield Catalogue([offers[name] for name in config.tasks], config.seeds)


def _env_config(config: EpisodesConfig, research: Sequence[str]) -> ResearchEnvConfig:
    """Returns the settings of the environment that lends boxes and graders for research tasks."""
    runtime = "docker" if config.provider == "docker" else "subprocess"
    return ResearchEnvConfig.model_validate(
        {
            "taskset": {
                "id": "air",
                "tasks": list(research),
                "task_roots": list(config.task_roots),
                "mlgym_root": config.mlgym_root,
            },
            "agent": {
                "runtime": {"type": runtime},
                "max_turns": config.max_turns or RESEARCH_TURNS,
            },
            "max_boxes": config.max_sessions,
            "grader_boxes": config.grader_boxes,
            "gpus": list(config.gpus),
        }
    )
