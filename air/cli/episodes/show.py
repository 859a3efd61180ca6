"""Implements the command `air show PATH`: prints a run (with a list of its episodes) or a recorded episode on
the terminal."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from air.cli import flags

if TYPE_CHECKING:
    from collections.abc import Sequence

    from air.view.index.episode_file import EpisodeFile
    from air.view.index.items import Item

DEFAULT_SORT, DEFAULT_LAST = "newest", 15
HELP = "show a run, or an episode step by step, in the terminal"
EXAMPLES = (
    "air show outputs/RUN --sort reward",
    "air show outputs/RUN/trajectories/ID.jsonl --turn 2",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=Path, help="a run's folder, or a file in its trajectories/")
    parser.add_argument("--task", help="run: only episodes of this task (all)")
    parser.add_argument("--sort", help="run: order of the episodes (newest)")
    parser.add_argument(
        "--last", type=flags.count, metavar="N", help="run: most episodes to list (15)"
    )
    flags.add_turn(
        parser,
        "episode: only this turn, in full, with its tokens; --step is the earlier name "
        "(default: a line for each)",
    )
    parser.add_argument(
        "--full",
        action="store_true",
        help="episode: every turn in full; with --turn: very long texts and all tokens",
    )
    parser.add_argument(
        "--only",
        choices=("validates", "errors"),
        help="episode: only turns with validates, or with errors (all)",
    )


def run(args: argparse.Namespace) -> int:
    from air.errors import MissingError

    if args.path.is_dir():
        _refuse(args, "an episode", "turn", "full", "only")
        _run(args)
    elif args.path.is_file():
        _refuse(args, "a run", "task", "sort", "last")
        _episode(args)
    else:
        remedy = "name a run's folder, or a file in its trajectories/"
        raise MissingError("no such file or folder", where=str(args.path), remedy=remedy)
    return 0


def _refuse(args: argparse.Namespace, kind: str, *names: str) -> None:
    """Raises ConfigError if one of the flags `names` is given, because none of them has an effect for the
    given path. `kind` says, for the error message, for what kind of path they have one, such as "a run"."""
    from air.errors import ConfigError

    if idle := [flags.as_written(args, name) for name in names if getattr(args, name)]:
        raise ConfigError(
            f"has a meaning only for {kind}, which {args.path} is not", where=", ".join(idle)
        )


def _run(args: argparse.Namespace) -> None:
    from air.view import terminal
    from air.view.index.run_discovery import discover
    from air.view.index.run_index import Filter, RunIndex
    from air.view.index.sqlite_schema import sort_order

    sort, last = sort_order(args.sort or DEFAULT_SORT), args.last or DEFAULT_LAST
    runs = discover([args.path])
    for run in runs:
        index = RunIndex(run.folder)
        index.file.refresh()
        conditions = Filter(task=args.task)
        episodes = index.episodes(conditions, sort=sort, limit=last if len(runs) == 1 else 3)
        terminal.show_run(terminal.console(), run, index, episodes, count=index.count(conditions))
        index.file.close()


def _episode(args: argparse.Namespace) -> None:
    from air.view import terminal, terminal_tokens
    from air.view.index.episode_file import scan

    file, out = scan(args.path), terminal.console()
    one_turn = args.turn is not None
    wanted, everything = _wanted(file, args), one_turn and args.full
    terminal.show_episode(out, file, wanted, full=args.full or one_turn, everything=everything)
    if one_turn:
        most = None if everything else terminal_tokens.MOST
        terminal_tokens.show(out, file, wanted[0], most=most)


def _wanted(file: EpisodeFile, args: argparse.Namespace) -> Sequence[Item]:
    from air.errors import MissingError

    if args.turn is not None:
        items = [p.item for p in file.places if p.kind == "step" and p.turn == args.turn]
        if not items:
            turns = file.facts.turns
            raise MissingError(
                f"the episode has no turn {args.turn}",
                where=str(file.path),
                remedy=f"it has {turns} turns: {flags.as_written(args, 'turn')} N",
            )
        return file.items(items[0], 1)
    every = file.items(0, file.facts.items)
    if args.only == "validates":
        return [item for item in every if item.validates]
    return [item for item in every if item.bad] if args.only == "errors" else every
