"""The command `air demos`: plays tasks with scripted agents, to make demonstrations for the command `sft`.

A scripted agent is a program that replies in place of a model.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from air.cli import flags

HELP = "play tasks with scripted agents; write trajectories and demonstrations for sft"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", type=Path, help="folder for trajectories/ and demos.jsonl")
    parser.add_argument(
        "--tasks",
        nargs="+",
        metavar="ID",
        default=["titanic", "digits", "prisonersDilemma"],
        help="the tasks to play (titanic digits prisonersDilemma)",
    )
    parser.add_argument("--episodes", type=int, default=100, help="episodes of each task (100)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the scripted agents (0)")
    flags.add_runtime(parser, default="docker", note="default: docker")


def run(args: argparse.Namespace) -> int:
    write(args.out, args.tasks, args.episodes, seed=args.seed, runtime=args.runtime)
    return 0


def write(out: Path, tasks: list[str], episodes: int, *, seed: int, runtime: str) -> Path:
    """Plays each task `episodes` times with scripted agents; returns the file `out/demos.jsonl`.

    The trajectories are in `out/trajectories`. `runtime` is the kind of box, `docker` or `subprocess`. Raises
    UsageError if the folder `out` is not empty.
    """
    from rich.console import Console

    from air.errors import UsageError
    from air.train.loop.metrics import mean
    from air.train.loop.scripted_agent import demonstrate
    from air.trajectories.conversations import to_sft

    if out.exists() and any(out.iterdir()):
        raise UsageError("is not empty", where=str(out), remedy="name an empty or new folder")
    rollouts = asyncio.run(
        demonstrate(tasks, episodes, out / "trajectories", seed=seed, runtime=runtime)
    )
    count = to_sft(sorted((out / "trajectories").glob("*.jsonl")), out / "demos.jsonl")
    reward = mean(r.reward for r in rollouts if r.ok)
    Console().print(
        f"{count} demonstrations in {out}, mean reward {reward or 0:+.3f}",
        highlight=False,
        soft_wrap=True,
    )
    return out / "demos.jsonl"
