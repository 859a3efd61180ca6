"""Implements the command `air export RUN --html FILE`: writes the episodes of a run as one self-contained
HTML page."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "write a run as one self-contained HTML page"
EXAMPLES = ("air export outputs/RUN --html run.html",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="a run's folder")
    parser.add_argument(
        "--html", type=Path, required=True, metavar="FILE", help="the page to write"
    )
    parser.add_argument(
        "--episodes", type=int, default=200, metavar="N", help="most episodes on the page (200)"
    )
    parser.add_argument(
        "--sort",
        default="newest",
        help="which episodes come first, as in `air show --sort` (newest)",
    )
    parser.add_argument("--task", help="only episodes of this task (all)")


def run(args: argparse.Namespace) -> int:
    from air.errors import ConfigError, MissingError
    from air.view import export
    from air.view.index.run_discovery import discover
    from air.view.index.run_index import Filter, RunIndex
    from air.view.index.sqlite_schema import sort_order

    sort = sort_order(args.sort)
    if args.episodes < 0:
        raise ConfigError(f"must be 0 or more, not {args.episodes}", where="--episodes")
    runs = discover([args.run])
    if len(runs) > 1:
        names = ", ".join(run.name for run in runs[:4])
        raise MissingError(
            "the folder holds several runs", where=str(args.run), remedy=f"name one: {names}"
        )
    index = RunIndex(runs[0].folder)
    index.file.refresh()
    filter_ = Filter(task=args.task)
    episodes = index.episodes(filter_, sort=sort, limit=args.episodes)
    export.write(runs[0], index, episodes, args.html)
    omitted = index.count(filter_) - len(episodes)
    note = f"; {omitted} more are left out, see --episodes" if omitted else ""
    print(f"{args.html}: {len(episodes)} episodes, {args.html.stat().st_size / 1e6:.1f} MB{note}")
    return 0
