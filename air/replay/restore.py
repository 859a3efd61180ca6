"""Restores the state of a recorded episode after any of its steps, by repeating the recorded actions in a box
(sandbox). Used by `air replay` and `air shell --from`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from air.actions import Action, ActionFormat, FormatError, Message, MessageCall, ToolCall
from air.actions.mlgym import SIGNATURES
from air.env.config import AirHarnessConfig
from air.errors import ConfigError, UsageError, boundary
from air.replay import recorded_settings
from air.replay.options import ReplayOptions
from air.rewards.delta import DeltaReward
from air.sandbox.contract.box import Box
from air.sandbox.pool.gpu_leases import GpuPool, divided
from air.sandbox.pool.gpus import GpuSelection, plan
from air.tasks.grading import Grader
from air.tasks.spec import TaskSpec
from air.trajectories import Start, Step, Trajectory, Validation, read
from air.trajectories.schema import parse
from air.worlds import base as worlds
from air.worlds.research.tools import Tools
from air.worlds.research.world import ResearchWorld


@dataclass
class RestoredEpisode:
    """A recorded episode together with a box (sandbox) in which some of its steps have been repeated. The
    function `begin` creates such objects."""

    trajectory: Trajectory
    start: Start
    world: ResearchWorld
    format: ActionFormat
    harness: AirHarnessConfig

    async def repeat_steps(self, steps: int) -> None:
        """Repeats the actions of the first `steps` steps. Nothing is graded: the scores come from the record.

        Raises ConfigError if a recorded action or score is invalid, and BoxDiedError if the box no longer
        exists.
        """
        path = self.trajectory.path
        for step in self.trajectory.steps[:steps]:
            action = action_of(step, self.format, path)
            if action is not None and (action.script or action.tool):
                await self.world.step(Action(script=action.script, tool=action.tool))
            for validation in self.trajectory.validations_of(step):
                with boundary(ConfigError, f"{path}: step {step.turn}", ValueError):
                    self.world.pay.of(validation.score, validation.stderr)
                await self.world.restore(_as_graded(validation))
            if action is not None and action.ending == "submit":
                await self.world.submit()

    def fork(self, box: Box) -> RestoredEpisode:
        """Returns a copy of this object that continues the episode in `box`. The workspace of `box` must be a
        copy of the present workspace. At the end, the caller must call `abandon` on the `world` of the copy,
        which cancels a running grading and closes the MCP servers (Model Context Protocol) of the world."""
        return replace(self, world=self.world.fork(box))


@asynccontextmanager
async def begin(
    trajectory: Trajectory, start: Start, task: TaskSpec, box: Box, grader: Grader
) -> AsyncIterator[RestoredEpisode]:
    """Async context manager: copies the task's files into the new box `box`, starts the task's MCP servers
    (Model Context Protocol), and yields a `RestoredEpisode` in the state before the first step. At the end of
    the block, it closes the servers.

    `start` is the first line of `trajectory`. Raises ConfigError if a recorded setting cannot be used,
    MissingError if a plugin cannot be imported, and InfrastructureError if the task's data or the box failed.
    """
    action_format = recorded_settings.format_of(start, trajectory.path)
    scale, reward = recorded_settings.reward(start, task, {}, trajectory.path)
    harness = recorded_settings.harness(start, trajectory.path)
    tools = None
    if action_format.uses_tools:
        tools = Tools(box, harness.tool_settings(task.network))
    pay = DeltaReward(scale, mode=reward.delta, unscored=reward.unscored)
    world = ResearchWorld(
        task=task,
        box=box,
        grader=grader,
        pay=pay,
        counts=start.counts,
        tools=tools,
        told_step=start.told_step,
        max_validates=start.max_validates,
    )
    await world.reset(start.seed)
    try:
        yield RestoredEpisode(trajectory, start, world, world.offered(action_format), harness)
    finally:
        await world.abandon()


def gpu_pools(
    wanted: GpuSelection, files: Iterable[Path], options: ReplayOptions, *, boxes: bool
) -> tuple[GpuPool, GpuPool]:
    """Returns two pools of GPUs for replaying the trajectory files `files`: one for agents' boxes and one for
    grader boxes.

    `wanted` is the parsed value of the flag `--gpus`. `boxes` is false if agents' boxes are not needed,
    because the artefacts are only graded. Files that cannot be read are skipped. Raises ConfigError if there
    are too few GPUs, or if a GPU does not exist.
    """
    box = grader = 0
    for path in files:
        try:
            first = next(read(path), None)
            start = None if first is None else parse(first, where=str(path))
            if isinstance(start, Start):
                task = recorded_settings.load_task(start, path, options)
                box, grader = max(box, task.gpus if boxes else 0), max(grader, task.grader.gpus)
        except UsageError:
            continue  # the replay of this file reports it
    return divided(plan(wanted), box=box, grader=grader, where="--gpus")


def action_of(step: Step, played: ActionFormat, path: Path) -> Action | None:
    """Returns the recorded action of a step, or None if the model's reply was not a valid action.

    `played` is the action format of the episode. Raises ConfigError, which names the trajectory file `path`,
    if `played` lacks the tool that the action calls, or cannot parse the reply.
    """
    where = f"{path}: step {step.turn}"
    if step.call is not None:
        use = step.call.tool
        own = use is None or use.arguments is None  # others are tools of the task's MCP servers
        if use is not None and own and not (played.uses_tools and use.name in SIGNATURES):
            raise ConfigError(f"{played.name} has no tool {use.name!r}", where=where)
        tool = None if use is None else ToolCall(use.name, use.args, use.body, use.arguments)
        return Action(script=step.call.script, ending=step.call.ending, tool=tool)
    if step.action is None:
        return None
    with boundary(ConfigError, where, FormatError):
        return played.read(message_of(step))


def message_of(step: Step) -> Message:
    """Returns the model's recorded message of a step (text, tool calls and reasoning), in the form that
    action formats parse."""
    calls = (MessageCall(call.id, call.name, call.arguments) for call in step.tool_calls)
    return Message(step.reply, tuple(calls), step.reasoning or "")


def _as_graded(one: Validation) -> worlds.Validation:
    return worlds.Validation(
        score=one.score,
        phi=one.phi,
        delta=one.delta,
        problem=one.problem,
        fault=one.fault,
        stderr=one.stderr,
        floor=one.floor,
        metrics=dict(one.metrics),
        digest=one.artefact,
        automatic=one.automatic,
    )
