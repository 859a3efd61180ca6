"""`air show PATH`: a run or an episode in a terminal; pipe it into a pager where it is long."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from air.view.index.episode_file import Single
    from air.view.index.steps import Item

HELP = "show a run, or an episode step by step, in the terminal"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("path", type=Path, help="a run's folder, or a file of its trajectories/")
    parser.add_argument("--task", help="of a run: only this task's episodes")
    parser.add_argument("--sort", default="newest", help="of a run: how its episodes are sorted")
    parser.add_argument("--last", type=int, default=15, metavar="N", help="of a run: so many (15)")
    parser.add_argument("--step", type=int, metavar="N", help="of an episode: this turn, in full")
    parser.add_argument(
        "--full",
        action="store_true",
        help="of an episode: every turn; with --step: also what is very long",
    )
    parser.add_argument(
        "--only", choices=("validates", "errors"), help="of an episode: only the turns with these"
    )


def run(args: argparse.Namespace) -> int:
    """Shows it. Raises UsageError where it cannot be read."""
    from air.errors import MissingError

    try:
        if args.path.is_dir():
            _run(args)
        elif args.path.is_file():
            _episode(args)
        else:
            remedy = "name a run's folder, or a file of its trajectories/"
            raise MissingError("no such file or folder", where=str(args.path), remedy=remedy)
        sys.stdout.flush()
    except BrokenPipeError:  # the pager was left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _run(args: argparse.Namespace) -> None:
    from air.errors import ConfigError
    from air.view import terminal
    from air.view.index.run_index import Filter, RunIndex
    from air.view.index.runs import discover
    from air.view.index.tables import check_sort

    check_sort(args.sort)
    if args.last < 1:
        raise ConfigError(f"must be 1 or more, not {args.last}", where="--last")
    runs = discover([args.path])
    for one in runs:
        index = RunIndex(one.folder)
        index.refresh()
        wanted = Filter(task=args.task)
        episodes = index.episodes(wanted, sort=args.sort, limit=args.last if len(runs) == 1 else 3)
        terminal.show_run(terminal.console(), one, index, episodes, count=index.count(wanted))
        index.close()


def _episode(args: argparse.Namespace) -> None:
    from air.view import terminal
    from air.view.index.episode_file import scan

    single = scan(args.path)
    full = args.full or args.step is not None
    terminal.show_episode(
        terminal.console(),
        single,
        _wanted(single, args),
        full=full,
        everything=args.step is not None and args.full,
    )


def _wanted(single: Single, args: argparse.Namespace) -> Sequence[Item]:
    from air.errors import MissingError

    if args.step is not None:
        found = [p.item for p in single.places if p.kind == "step" and p.turn == args.step]
        if not found:
            turns = single.facts.turns
            raise MissingError(
                f"has no turn {args.step}",
                where=str(single.path),
                remedy=f"it has {turns}: --step N",
            )
        return single.items(found[0], 1)
    every = single.items(0, single.facts.items)
    if args.only == "validates":
        return [item for item in every if item.validates]
    return [item for item in every if item.bad] if args.only == "errors" else every
