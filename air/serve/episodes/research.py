"""Offers research tasks to the clients of an episode server. In such a task, the agent runs shell scripts in
a box (a container or process), and develops a result that is graded. A client's message is a shell script,
the word `validate` or `submit` (both grade the result), or a script whose last line is one of these words."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from air.actions.base import Action, Ending
from air.env.config import ResearchEnvConfig
from air.env.environment import ResearchEnv
from air.serve.episodes.offered_tasks import (
    InvalidAction,
    OfferedTask,
    OfferedWorld,
    Schema,
    text_of,
    tool,
)
from air.serve.episodes.settings import EpisodesConfig
from air.tasks.spec import TaskSpec
from air.worlds import sources
from air.worlds.base import Step, World
from air.worlds.research.observations import describe
from air.worlds.research.world import ResearchWorld

MAX_TURNS = 50
_ENDINGS: Mapping[str, Ending] = {"validate": "validate", "submit": "submit"}
TOOLS = (
    tool("bash", "Runs a shell script in the workspace.", script="The script."),
    tool("validate", "Scores the artefact. The reward is the change of the score."),
    tool("submit", "Scores the artefact as validate does, and ends the episode."),
)
"""The descriptions of the tools of every research task: `bash`, `validate` and `submit`."""


@dataclass(frozen=True)
class OfferedResearchTask:
    """An `OfferedTask` (a task that a server offers to clients) for a research task: in each episode, the
    agent works in a box (container or process) from a pool, and develops a result that is graded."""

    spec: TaskSpec
    env: ResearchEnv
    max_turns: int
    seconds: float
    tools: Sequence[Schema] = TOOLS
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

    def action_of_text(self, message: str) -> Action:
        lines = message.strip("\n").split("\n")
        ending = _ENDINGS.get(lines[-1].strip())
        script = "\n".join(lines[:-1] if ending else lines).strip("\n")
        if not script.strip() and ending is None:
            raise InvalidAction(
                "The message is empty: send a shell script, `validate` or `submit`."
            )
        for line in script.split("\n"):
            if line.strip() in _ENDINGS:
                raise InvalidAction(f"`{line.strip()}` must be the last line of the message.")
        return Action(script=script if script.strip() else "", ending=ending)

    def action_of_call(self, name: str, arguments: Mapping[str, Any]) -> Action:
        if name == "bash":
            script = text_of(arguments, "script")
            if not script.strip():
                raise InvalidAction("`script` is empty.")
            return Action(script=script)
        if arguments:
            raise InvalidAction(f"`{name}` takes no arguments.")
        return Action(ending=_ENDINGS[name])

    def reward(self, step: Step) -> float | None:
        return None if step.validation is None else step.validation.delta

    async def at_limit(self, world: World[Action]) -> float | None:
        assert isinstance(world, ResearchWorld)
        validation = await world.validate(automatic=True)
        return validation.delta


@asynccontextmanager
async def open_tasks(
    config: EpisodesConfig, names: Sequence[str]
) -> AsyncIterator[dict[str, OfferedTask]]:
    """Async context manager: loads the tasks with the ids `names`, and yields them as a dict by id. During
    the block, two pools are open: boxes in which agents work, and boxes in which their results are graded.

    Raises UsageError if a task does not exist, or cannot run on this machine.
    """
    env = ResearchEnv(_env_config(config, names))
    try:
        await env.start()
        tasks: dict[str, OfferedTask] = {}
        for name in names:
            if sources.is_world(name):
                task = sources.load(name)
                turns, seconds = config.max_turns or task.max_turns, config.seconds or task.seconds
                tasks[name] = OfferedWorld(task, turns, seconds, env)
                continue
            spec = env.spec(name)
            seconds = config.seconds or spec.limits.episode_seconds
            tasks[name] = OfferedResearchTask(spec, env, config.max_turns or MAX_TURNS, seconds)
        yield tasks
    finally:
        await env.stop()


def _env_config(config: EpisodesConfig, names: Sequence[str]) -> ResearchEnvConfig:
    """Converts the server's settings to the settings of the environment that provides boxes and graders for
    the tasks `names`."""
    runtime = "docker" if config.provider == "docker" else "subprocess"
    return ResearchEnvConfig.model_validate(
        {
            "taskset": {
                "id": "air",
                "tasks": list(names),
                "task_roots": list(config.task_roots),
                "mlgym_root": config.mlgym_root,
            },
            "agent": {
                "runtime": {"type": runtime},
                "max_turns": config.max_turns or MAX_TURNS,
            },
            "max_boxes": config.max_sessions,
            "grader_boxes": config.grader_boxes,
            "gpus": list(config.gpus),
        }
    )
