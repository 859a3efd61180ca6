"""Implements the command `air tasks`: lists tasks, and checks, records, creates, downloads or exports them.

`air tasks harbor:PATH` lists tasks in Harbor's format. `check` runs the reference solutions of tasks and
compares their scores with the recorded ones; `record` writes new scores into the tasks' files. `new` makes
the folder of a new task. `fetch` downloads files for a task's data. `export` writes tasks in the format of
another program. `air tasks rows:PATH` lists the rows (questions with answers) of a data file.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from air.cli import attacks, flags, harbor_check, task_check, task_listing, task_rows
from air.cli.task_listing import HARBOR

HELP = "list the tasks; check, make, record or export tasks"
EXAMPLES = (
    "air tasks",
    "air tasks list harbor:DIR",
    "air tasks check titanic",
    "air tasks check harbor:DIR --attacks",
    "air tasks new myTask --dir my-tasks",
    "air tasks record myTask --task-root my-tasks",
    "air tasks fetch titanic",
    "air tasks export titanic digits --to harbor exported",
    "air tasks rows data.jsonl --where level=3",
)
_LIST, _ROWS = "list", "rows:"
SPLIT_SEED_HELP = (
    "split the data by this seed; compares only the order of the scores (default: the public split)"
)
PROVIDER_HELP = "the kind of box: docker (default), or process for process boxes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags.add_task_root(parser)
    flags.add_mlgym_root(parser)
    actions = parser.add_subparsers(
        dest="action", metavar="list|check|new|record|fetch|export|rows"
    )
    listed = actions.add_parser(
        _LIST, help="list the tasks, or those of Harbor; `list` can be left out"
    )
    listed.add_argument(
        "ids", nargs="*", metavar="harbor:PATH", help="a task, or a set of tasks (air's own)"
    )
    check = actions.add_parser("check", help="play the recorded solvers and compare their scores")
    check.add_argument("ids", nargs="*", metavar="ID", help="the tasks to check")
    check.add_argument("--all", action="store_true", help="check every task")
    check.add_argument(
        "--provider", choices=("docker", "process"), default="docker", help=PROVIDER_HELP
    )
    flags.add_gpus(check)
    check.add_argument("--split-seed", type=int, help=SPLIT_SEED_HELP)
    cores = len(os.sched_getaffinity(0))
    check.add_argument(
        "--at-once", type=int, default=cores, help=f"tasks at a time (one a core: {cores})"
    )
    attacks.add_arguments(check)
    harbor_check.add_arguments(check)
    new = actions.add_parser("new", help="make a small working task to start from")
    new.add_argument("name", metavar="NAME", help="letters, digits, - and _")
    new.add_argument(
        "--dir", type=Path, default=Path("tasks"), help="the folder to make the task in (./tasks)"
    )
    record = actions.add_parser(
        "record", help="play the solvers and write their scores into the task's files"
    )
    record.add_argument(
        "ids",
        nargs="+",
        metavar="ID",
        help="the tasks to record; MLGym's have no files to write to",
    )
    record.add_argument(
        "--provider", choices=("docker", "process"), default="docker", help=PROVIDER_HELP
    )
    fetch = actions.add_parser("fetch", help="download the sources of a task's data")
    fetch.add_argument("ids", nargs="+", metavar="ID", help="the tasks")
    export = actions.add_parser("export", help="write tasks in another program's format")
    export.add_argument("ids", nargs="*", metavar="ID", help="the tasks")
    export.add_argument("--all", action="store_true", help="every task that can be exported")
    export.add_argument(
        "--to",
        nargs=2,
        required=True,
        metavar=("FORMAT", "DIR"),
        help="harbor: a folder of Harbor for each task, DIR/ID",
    )
    export.add_argument("--force", action="store_true", help="replace folders that are there")
    rows = actions.add_parser("rows", help="list rows of questions, and what leaks between splits")
    task_rows.add_arguments(rows)
    for action in (listed, check, record, fetch, export):
        flags.add_task_root(action, inner=True)
    for action in (listed, check, fetch):
        flags.add_mlgym_root(action, inner=True)


def spelled_out(arguments: list[str]) -> list[str]:
    """Adds a missing subcommand to the arguments of `air tasks`, and returns them: in front of an id
    `harbor:…` as the first argument, adds `list`; in front of an id `rows:…`, adds `rows`. Other arguments
    are returned unchanged."""
    for prefix, action in ((HARBOR, _LIST), (_ROWS, "rows")):
        if arguments and arguments[0].startswith(prefix):
            return [action, *arguments]
    return arguments


def run(args: argparse.Namespace) -> int:
    """Runs the subcommand; without a subcommand, lists the tasks. Returns the exit code, for example 1 if
    `check` found a wrong score."""
    if args.action == "check":
        return asyncio.run(task_check.run(args))
    if args.action == _LIST and args.ids:
        return task_listing.list_harbor(args.ids)
    if args.action == "record":
        return asyncio.run(_record(args))
    if args.action == "fetch":
        return _fetch(args.ids, args.task_root, args.mlgym_root)
    if args.action == "export":
        return _export(args)
    if args.action == "rows":
        return task_rows.run(args)
    if args.action == "new":
        return _new(args.name, args.dir)
    return task_listing.list_tasks(args.task_root, args.mlgym_root)


def _fetch(ids: Sequence[str], roots: Sequence[Path], mlgym_root: Path | None) -> int:
    from air import tasks
    from air.tasks.downloads import fetch

    for task in [tasks.load(name, roots, mlgym_root=mlgym_root) for name in ids]:
        print(f"{task.id}: {fetch(task)}")
    return 0


def _export(args: argparse.Namespace) -> int:
    from air import tasks
    from air.errors import ConfigError
    from air.tasks.export import harbor

    form, root = args.to
    if form != "harbor":
        raise ConfigError(f"{form!r} is no format; known: harbor", where="--to")
    if bool(args.ids) == args.all:
        raise ConfigError("name tasks, or give --all", where="air tasks export")
    specs = [
        tasks.load(name, args.task_root) for name in args.ids or tasks.available(args.task_root)
    ]
    for task in specs:
        if args.all and (reason := harbor.refusal(task)):
            print(f"not exported: {task.id}: {reason}")
            continue
        print(harbor.export(task, Path(root), force=args.force))
    return 0


async def _record(args: argparse.Namespace) -> int:
    from air import tasks
    from air.sandbox.pool.box_pool import Pool
    from air.tasks.check import check
    from air.tasks.grading import Grader
    from air.tasks.record_scores import record

    async with Pool(1, warm=0) as boxes, Pool(1, nested=True) as graders:
        grader = Grader(graders, args.provider)
        for spec in [tasks.load(name, args.task_root) for name in args.ids]:
            rows = await check(spec, boxes, grader, args.provider, recording=True)
            record(spec, rows)
            for row in rows:
                print(f"{row.task}, {row.solver}: val {row.val}, test {row.test}")
    return 0


def _new(name: str, root: Path) -> int:
    from air import paths
    from air.tasks.new import make

    folder = make(name, root)
    shipped = folder.parent.resolve() == paths.shipped("tasks")
    where = "" if shipped else f" --task-root {shlex.quote(str(folder.parent))}"
    air = paths.command()
    print(f"made {folder}; play it as it is: {air} tasks{where} check {name}")
    print(f"after changes, record the scores of its solvers: {air} tasks{where} record {name}")
    return 0
