"""`air export RUN --html FILE`: a run as one self-contained page."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "write a run as one self-contained HTML page"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("run", type=Path, help="a run's folder")
    parser.add_argument("--html", type=Path, required=True, metavar="FILE", help="the page")
    parser.add_argument(
        "--episodes", type=int, default=200, metavar="N", help="so many of them turn by turn (200)"
    )
    parser.add_argument("--sort", default="newest", help="which come first: as `air show --sort`")
    parser.add_argument("--task", help="only this task's episodes")


def run(args: argparse.Namespace) -> int:
    """Writes it.

    Raises:
        UsageError: the run cannot be read, or the page not be written.
    """
    from air.errors import ConfigError, MissingError
    from air.view import export
    from air.view.index.run_index import Filter, RunIndex
    from air.view.index.runs import discover
    from air.view.index.tables import check_sort

    check_sort(args.sort)
    if args.episodes < 0:
        raise ConfigError(f"must be 0 or more, not {args.episodes}", where="--episodes")
    found = discover([args.run])
    if len(found) > 1:
        names = ", ".join(one.name for one in found[:4])
        raise MissingError("holds several runs", where=str(args.run), remedy=f"name one: {names}")
    index = RunIndex(found[0].folder)
    index.refresh()
    wanted = Filter(task=args.task)
    episodes = index.episodes(wanted, sort=args.sort, limit=args.episodes)
    export.write(found[0], index, episodes, args.html)
    left_out = index.count(wanted) - len(episodes)
    note = f"; {left_out} more are left out: --episodes N" if left_out else ""
    print(f"{args.html}: {len(episodes)} episodes, {args.html.stat().st_size / 1e6:.1f} MB{note}")
    return 0
