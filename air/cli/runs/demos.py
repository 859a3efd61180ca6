"""The command `air demos`: plays tasks with scripted agents, to make demonstrations for the command `sft`.

A scripted agent is a program that replies in place of a model.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import os
from pathlib import Path

from air.cli import flags

HELP = "play tasks with scripted agents; write trajectories and demonstrations for sft"
EXAMPLES = ("air demos demos --tasks titanic digits --episodes 50",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", type=Path, help="folder for trajectories/ and demos.jsonl")
    default = ["titanic", "digits", "prisonersDilemma"]
    flags.add_tasks(parser, default=default, note=" ".join(default))
    flags.add_count(parser, "--episodes", 100, "episodes of each task")
    parser.add_argument("--seed", type=int, default=0, help="seed of the scripted agents (0)")
    flags.add_runtime(parser, default="docker", note="default: docker")


def run(args: argparse.Namespace) -> int:
    from air import tasks

    for name in args.tasks:  # an unknown task is reported before anything is played
        tasks.load(name)
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
