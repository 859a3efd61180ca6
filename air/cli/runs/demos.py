"""Implements the command `air demos`: plays tasks with scripted agents, and writes demonstrations for the
command `sft` (supervised fine-tuning).

A scripted agent is a program that replies in place of a model.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import os
from pathlib import Path

from air.cli import flags
from air.cli.heavy_imports import collector_paused

HELP = "play tasks with scripted agents; write trajectories and demonstrations for sft"
EXAMPLES = (
    "air demos demos --tasks titanic digits --episodes 50",
    "air demos demos --tasks game:sokoban6 --format react --episodes 50",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", type=Path, help="folder for trajectories/ and demos.jsonl")
    default = ["titanic", "digits", "prisonersDilemma"]
    flags.add_tasks(parser, default=default, note=" ".join(default))
    flags.add_count(parser, "--episodes", 100, "episodes of each task")
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="seed of the scripted agents, and first seed of worlds (0)",
    )
    parser.add_argument("--format", help="action format in worlds (default: that of each world)")
    parser.add_argument(
        "--thought",
        default="I know what to do.",
        help="what replies in worlds say before the action",
    )
    flags.add_runtime(parser, default="docker", note="default: docker")


def run(args: argparse.Namespace) -> int:
    from air import actions, tasks
    from air.errors import ConfigError
    from air.worlds import sources

    for name in args.tasks:  # reports an unknown task before anything is played
        (sources if sources.is_world(name) else tasks).load(name)
    if args.format is not None:
        try:
            actions.get(args.format)
        except ConfigError as error:
            text = str(error).removeprefix("env.agent.harness.format: ")
            raise ConfigError(text, where="--format") from error
    write(
        args.out,
        args.tasks,
        args.episodes,
        seed=args.seed,
        runtime=args.runtime,
        action_format=args.format,
        thought=args.thought,
    )
    return 0


def write(
    out: Path,
    tasks: list[str],
    episodes: int,
    *,
    seed: int,
    runtime: str,
    action_format: str | None = None,
    thought: str = "I know what to do.",
) -> Path:
    """Plays each task in `tasks` (ids) `episodes` times with scripted agents, and writes demonstrations.
    Returns the path of their file, `out/demos.jsonl`; the recorded episodes are in `out/trajectories`.

    `runtime` is the kind of sandbox for research tasks: `docker` or `subprocess`. The other tasks are worlds,
    such as games. For them, `action_format` is the syntax of actions (None: each world's own), and `thought`
    is the text before the action in each reply. `seed` is the seed of the scripted agents in research tasks,
    and the first of consecutive seeds of worlds. Raises UsageError if the folder `out` is not empty, a world
    has no scripted player, or a seed is reserved for evaluations.
    """
    from rich.console import Console

    with collector_paused():
        from air.errors import UsageError
        from air.manual import demonstrations
        from air.train.evaluation.scripted_agent import demonstrate
        from air.train.loop.metrics import mean
        from air.trajectories.conversations import to_sft
        from air.worlds.sources import VALIDATION_SEED, is_world

    if any(map(is_world, tasks)) and seed + episodes > VALIDATION_SEED:
        raise UsageError(
            f"the seeds of worlds would be {seed} to {seed + episodes - 1}, but those from"
            f" {VALIDATION_SEED} on are kept for evaluations",
            where="--seed",
            remedy="choose a smaller number",
        )
    if out.is_dir() and any(out.iterdir()):
        raise UsageError("is not empty", where=str(out), remedy="name an empty or new folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
        if not os.access(out, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise UsageError(
            f"cannot be written: {error.strerror}", where=str(out), remedy="name another folder"
        ) from None
    folder = out / "trajectories"
    rewards: list[float] = []
    for name in filter(is_world, tasks):
        seeds = range(seed, seed + episodes)
        in_worlds = demonstrations.demonstrate(
            name, seeds, folder, action_format=action_format, thought=thought
        )
        rewards += asyncio.run(in_worlds)
    if research := [name for name in tasks if not is_world(name)]:
        played = asyncio.run(demonstrate(research, episodes, folder, seed=seed, runtime=runtime))
        rewards += [r.reward for r in played if r.ok]
    count = to_sft(sorted(folder.glob("*.jsonl")), out / "demos.jsonl")
    reward = mean(rewards)
    Console().print(
        f"{count} demonstrations in {out}, mean reward {reward or 0:+z.3f}",
        highlight=False,
        soft_wrap=True,
    )
    return out / "demos.jsonl"
