"""Plays worlds (games and other environments) with their scripted players, and records the episodes as
trajectories, in any action format (syntax in which a model writes actions).

A scripted player (`WorldTask.player`) is a program that knows how to solve its world. The command `air demos`
makes demonstrations for supervised fine-tuning in this way.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from air.env.config import AirHarnessConfig, AirTasksetConfig, ResearchEnvConfig
from air.errors import UsageError
from air.manual.world_session import ManualWorld
from air.worlds import sources


async def demonstrate(
    task_id: str,
    seeds: Sequence[int],
    folder: Path,
    *,
    action_format: str | None = None,
    thought: str,
) -> list[float]:
    """Plays one episode of a task for each of `seeds`, with the scripted player of the task's world as the
    agent, and writes the record of each episode (trajectory) to a file `<episode id>.jsonl` in `folder`.
    Returns the reward of each episode, in the order of `seeds`.

    `task_id` is the id of the task, such as `game:sokoban6`. `action_format` is the name of the action
    format, the syntax of the replies (None: the task's own format). Every reply contains the text `thought`
    as its reasoning.

    The recorded conversation is the one that a model with these replies would have had. Raises UsageError if
    the world has no scripted player, or if the action format cannot express one of the player's actions.
    Raises InfrastructureError if the world failed.
    """
    task = sources.load(task_id)
    if task.player is None:
        raise UsageError("this world has no scripted player", where=task_id)
    config = ResearchEnvConfig(
        taskset=AirTasksetConfig(tasks=[task_id]),
        agent={"harness": AirHarnessConfig(format=action_format).model_dump()},
    )
    rewards = []
    for seed in seeds:
        async with ManualWorld(config, seed=seed, player="scripted") as manual:
            episode, shown = manual.episode, manual.episode.first.text
            player = task.player(episode.world.world, seed)
            assert episode.format is not None
            while not episode.why_ended:
                try:
                    reply = episode.format.render(thought, player(shown))
                except ValueError as error:
                    raise UsageError(
                        str(error), where=task_id, remedy="choose another --format"
                    ) from None
                lines = await manual.act(reply)
                shown = next(line["observation"] for line in lines if line["type"] == "step")
            manual.save(folder / f"{episode.id}.jsonl")
            rewards.append(sum(episode.rewards.values()))
    return rewards
