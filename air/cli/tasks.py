"""`air tasks`: lists the tasks; `air tasks check`: plays their recorded solvers and compares."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from air.tasks.check import Checked
    from air.tasks.spec import TaskSpec

HELP = "list the tasks, or check their baselines in boxes"
SPLIT_SEED_HELP = "split the data anew; recorded scores do not apply, only their order"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`[--root DIR]`, `check [ID…] [--all] [--provider docker|process] [--split-seed N]`."""
    parser.add_argument(
        "--root", type=Path, action="append", default=[], help="another folder of tasks"
    )
    actions = parser.add_subparsers(dest="action", metavar="check")
    check = actions.add_parser("check", help="play the recorded solvers, compare their scores")
    check.add_argument("ids", nargs="*", metavar="ID", help="the tasks to check")
    check.add_argument("--all", action="store_true", help="check every task")
    check.add_argument("--provider", choices=("docker", "process"), default="docker")
    check.add_argument("--split-seed", type=int, help=SPLIT_SEED_HELP)


def run(args: argparse.Namespace) -> int:
    """Lists, or checks: 0 if every score is as recorded, 1 if one is not."""
    if args.action == "check":
        return asyncio.run(_check(args))
    return _list(args.root)


def _list(roots: Sequence[Path]) -> int:
    from air import tasks

    specs = [tasks.load(name, roots) for name in tasks.available(roots)]
    rows = [
        (s.id, s.metric, s.direction, f"{s.baseline:.4g}", f"{s.target:.4g}", s.needs())
        for s in specs
    ]
    _table(("task", "metric", "better", "baseline", "target", "needs"), rows)
    return 0


async def _check(args: argparse.Namespace) -> int:
    from air import tasks
    from air.errors import ConfigError
    from air.sandbox.pool import Pool
    from air.tasks.check import check, out_of_order
    from air.tasks.grading import Grader

    if bool(args.ids) == args.all:
        raise ConfigError("give either task ids or --all", where="air tasks check")
    specs = [tasks.load(name, args.root) for name in args.ids or tasks.available(args.root)]
    split_seed = tasks.data.SPLIT_SEED if args.split_seed is None else args.split_seed
    rows: list[tuple[str, ...]] = []
    complaints: list[str] = []
    async with Pool(1, warm=0) as boxes, Pool(1, nested=True) as graders:
        grader = Grader(graders, args.provider, split_seed=split_seed)
        for spec in specs:
            found = await check(spec, boxes, grader, args.provider, split_seed=split_seed)
            rows += [_row(spec, row) for row in found]
            complaints += [f"{r.task}, {r.solver}: {r.problem}" for r in found if r.problem]
            if problem := out_of_order(spec, found):
                complaints.append(f"{spec.id}: {problem}")
    _table(
        ("task", "solver", "val", "test", "phi", "run s", "grade s", ""),
        rows,
    )
    for complaint in complaints:
        print(f"mismatch: {complaint}", file=sys.stderr)
    return 1 if complaints else 0


def _row(task: TaskSpec, row: Checked) -> tuple[str, ...]:
    from air.rewards.normalise import phi_on

    scores = ["-" if v is None else f"{v:.4f}" for v in (row.val, row.test)]
    phi = "-" if row.val is None else f"{phi_on(task, row.val):.2f}"
    grade = f"{row.grade_seconds:.2f}" if row.grade_seconds else "known"
    state = "mismatch" if row.problem else "ok"
    return (row.task, row.solver, *scores, phi, f"{row.exec_seconds:.2f}", grade, state)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table for eyes; without a terminal, plain lines of columns two spaces apart."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if console.is_terminal:
        table = Table(*header)
        for row in rows:
            table.add_row(*row)
        console.print(table)
        return
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
