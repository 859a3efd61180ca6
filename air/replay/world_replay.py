"""Replays recorded episodes of worlds that need no box (sandbox), such as games: repeats every action, and
compares the results with the record."""

from __future__ import annotations

import math
import time
from pathlib import Path

from air.actions import Action, ToolCall
from air.env.observation_truncation import counter_for
from air.errors import ConfigError
from air.replay import recorded_settings
from air.replay.comparison import ReplayResult
from air.replay.ignored_differences import values
from air.replay.options import ReplayOptions
from air.replay.restore import message_of
from air.trajectories import Start, Step, Trajectory
from air.worlds import sources
from air.worlds.base import World
from air.worlds.sources import WorldTask


async def replay(trajectory: Trajectory, start: Start, options: ReplayOptions) -> ReplayResult:
    """Replays a recorded episode, and returns the result of the comparison with its record. `start` is the
    first line of the record (trajectory).

    Raises ConfigError if the world does not always give equal results for equal actions, or if the world has
    changed since the recording and the option `changed_task` is not set. Raises MissingError if the world is
    absent, and InfrastructureError if the world fails.
    """
    task = sources.load(start.task)
    check(start, task, trajectory.path, changed=options.changed_task)
    began, result = time.monotonic(), ReplayResult(trajectory.path, task.id)
    world = task.world()
    try:
        await _first(trajectory, start, world, result)
        total = 0.0
        for step in trajectory.steps:
            total += await _step(step, world, result)
            result.steps += 1
        _end(trajectory, total, dict(world.facts()), result)
    finally:
        await world.close()
    result.seconds = time.monotonic() - began
    return result


def check(start: Start, task: WorldTask, path: Path, *, changed: bool = False) -> None:
    """Raises ConfigError if a recorded episode cannot be replayed in the world of `task`: because this world
    does not always give equal results for equal actions, or because it has changed since the recording. If
    `changed` is true, a changed world is accepted. `start` is the first line of the record in the file
    `path`."""
    if not (task.replays and start.world and start.world.replays):
        raise ConfigError(
            f"cannot be replayed, since {task.id} does not answer equal actions always alike",
            where=str(path),
        )
    if start.task_hash != task.digest and not changed:
        raise ConfigError(
            f"{task.id} has changed since ({start.task_hash[:8]} then, {task.digest[:8]} now)",
            where=str(path),
            remedy="restore the former version, or compare anyway with --changed-task",
        )


async def _first(
    trajectory: Trajectory, start: Start, world: World[Action], result: ReplayResult
) -> None:
    harness = recorded_settings.harness(start, trajectory.path)
    first = await world.reset(start.seed)
    text, _ = counter_for(harness.tokenizer).cap(first.text, harness.max_observation_tokens)
    assert start.world is not None
    result.add_differences(values(0, "first observation", start.world.first, text))


async def _step(step: Step, world: World[Action], result: ReplayResult) -> float:
    """Repeats the action of a recorded step in the world, and adds the differences from the record to
    `result`. Returns the reward that the world now gives, or 0 if the step has no action."""
    if step.call is None:
        return 0.0
    tool = step.call.tool
    call = None if tool is None else ToolCall(tool.name, tool.args, tool.body, tool.arguments)
    again = await world.step(
        Action(
            tool=call,
            answer=step.call.answer,
            ending=step.call.ending,
            message=message_of(step),
        )
    )
    result.add_differences(
        values(step.turn, "observation", step.observation, again.observation.text),
        values(step.turn, "reward", step.reward, float(again.reward)),
        values(step.turn, "done", step.done, again.done),
    )
    return again.reward


def _end(
    trajectory: Trajectory, reward: float, facts: dict[str, float], result: ReplayResult
) -> None:
    """Compares two things with the record: `reward`, the sum of the replayed step rewards, and `facts`, the
    world's metrics of the episode by name. If the record has no last line, or if a failure ended the recorded
    episode, compares nothing and adds a note to `result`."""
    end = trajectory.end
    if end is None or not end.ok or end.terms is None:
        result.notes.append(
            "the record has no end, or a failure ended it: compared up to its last step"
        )
        return
    turn = trajectory.steps[-1].turn if trajectory.steps else 0
    result.scores = 1
    result.equal_scores = int(math.isclose(end.terms["world"], reward, rel_tol=1e-9, abs_tol=1e-9))
    if not result.equal_scores:
        result.add_differences(values(turn, "reward in all", end.terms["world"], reward))
    result.add_differences(values(turn, "facts", dict(end.facts), facts))
