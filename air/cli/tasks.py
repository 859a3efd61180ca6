"""The command `air tasks`: lists tasks, and checks, records, creates, downloads or exports them.

`harbor:PATH` lists tasks of Harbor. `check` runs the tasks' reference solutions and compares their scores
with the recorded ones; `record` writes new scores into the tasks' files. `new` makes a task's folder. `fetch`
downloads files for a task's data. `export` writes tasks in another program's format. `rows:PATH` lists the
rows (questions with answers) of a data file.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from air.cli import attacks, flags, gate, task_rows
from air.cli.output import print_columns

if TYPE_CHECKING:
    from air.sandbox.pool.gpu_leases import GpuPool
    from air.sandbox.pool.gpus import GpuSelection
    from air.tasks.check import Checked
    from air.tasks.sources.mlgym import Checkout, Status
    from air.tasks.spec import Provider, TaskSpec

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
_LIST, _HARBOR, _ROWS = "list", "harbor:", "rows:"
SPLIT_SEED_HELP = (
    "split the data by this seed; compares only the order of the scores (default: the public split)"
)
PROVIDER_HELP = "the kind of box: docker (default), or process for process boxes"
EVALUATOR_CAVEAT = (
    "MLGym's evaluation imports the agent's code, so this code can make it print any score"
)


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
    gate.add_arguments(check)
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
    """Returns the arguments of `air tasks` with the omitted subcommand: if the first argument is an id
    `harbor:…`, adds `list` in front of it; if it is an id `rows:…`, adds `rows`."""
    for prefix, action in ((_HARBOR, _LIST), (_ROWS, "rows")):
        if arguments and arguments[0].startswith(prefix):
            return [action, *arguments]
    return arguments


def run(args: argparse.Namespace) -> int:
    """Runs the subcommand; without a subcommand, lists the tasks. Returns the exit code, for example 1 if
    `check` found a wrong score."""
    if args.action == "check":
        return asyncio.run(_check(args))
    if args.action == _LIST and args.ids:
        return _list_harbor(args.ids)
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
    return _list(args.task_root, args.mlgym_root)


def _list(roots: Sequence[Path], mlgym_root: Path | None) -> int:
    from air import tasks
    from air.tasks.sources.lookup import mlgym

    specs = [tasks.load(name, roots) for name in tasks.available(roots)]
    rows = [
        (s.id, s.metric, s.direction, f"{s.baseline:.4g}", f"{s.target:.4g}", _needs(s))
        for s in specs
    ]
    _table(("task", "metric", "better", "baseline", "target", "needs"), rows)
    if (checkout := mlgym(mlgym_root)) is not None:
        _list_mlgym(checkout)
    _list_worlds()
    return 0


def _list_harbor(ids: Sequence[str]) -> int:
    from air.cli.harbor_tasks import listing
    from air.errors import ConfigError

    if others := [name for name in ids if not name.startswith(_HARBOR)]:
        raise ConfigError(
            f"{others[0]!r} is no task of Harbor",
            where="air tasks harbor:PATH",
            remedy="`air tasks` lists the others",
        )
    return listing(ids)


def _list_worlds() -> None:
    """Prints a table of the worlds that ship with air, and the kinds of worlds that cannot be listed, such as
    worlds at the URL of a server."""
    from air.errors import MissingError
    from air.worlds import sources

    worlds, open_ended = [], []
    for prefix in sources.SOURCES:
        try:
            names = sources.source(prefix).names()
        except MissingError as error:  # an optional package
            print(f"\nno worlds {prefix}:…: {error}")
            continue
        worlds += [sources.load(f"{prefix}:{name}") for name in names]
        open_ended += [] if names else [f"{prefix}:…"]
    rows = [
        (w.id, w.format, str(w.max_turns), "yes" if w.replays else "no", ", ".join(w.facts))
        for w in worlds
    ]
    print()
    _table(("world", "format", "turns", "replays", "facts"), rows)
    print(f"also worlds by address ({', '.join(open_ended)}), or of your own (MODULE:NAME)")


def _needs(task: TaskSpec) -> str:
    from air.tasks.missing import missing

    resources = missing(task)
    return f"{task.needs()}; missing: {', '.join(resources)}" if resources else task.needs()


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


def _list_mlgym(checkout: Checkout) -> None:
    """Prints a table of the tasks in an MLGym checkout and their status, then warnings about their scores."""
    statuses = [checkout.status(name) for name in checkout.names()]
    print()
    _table(
        ("task", "metric", "better", "baseline", "target", "trust", "status"),
        [_status_row(status) for status in statuses],
    )
    caveats: dict[str, list[str]] = {}
    for status in statuses:
        if status.task is not None:
            if status.task.trust == "evaluator":
                caveats.setdefault(EVALUATOR_CAVEAT, []).append(status.id)
            if status.task.caveat:
                caveats.setdefault(status.task.caveat, []).append(status.id)
    for caveat, ids in caveats.items():
        print(f"\ntrust: {caveat}: {', '.join(ids)}")


def _status_row(status: Status) -> tuple[str, ...]:
    text = f"{status.state}: {status.reason}" if status.reason else status.state
    if (task := status.task) is None:
        return (status.id, *["-"] * 5, text)
    scores = (f"{task.baseline:.4g}", f"{task.target:.4g}")
    return (status.id, task.metric, task.direction, *scores, task.trust, text)


async def _check(args: argparse.Namespace) -> int:
    from air import tasks
    from air.aio import run_concurrently
    from air.errors import ConfigError
    from air.sandbox.pool.box_pool import Pool
    from air.tasks.check import check, out_of_order
    from air.tasks.grading import Grader
    from air.tasks.splits import numbered

    if bool(args.ids) == args.all:
        raise ConfigError("name tasks, or give --all", where="air tasks check")
    if args.at_once < 1:
        raise ConfigError("must be 1 or more", where="--at-once")
    if args.ids and all(name.startswith(_HARBOR) for name in args.ids):
        return await gate.run(args, args.ids)
    if any(name.startswith(_HARBOR) for name in args.ids):
        raise ConfigError("check Harbor tasks and others apart", where="air tasks check")
    attacks.check_flags(args)
    ids = args.ids or [*tasks.available(args.task_root), *_playable_mlgym(args.mlgym_root)]
    specs = [tasks.load(name, args.task_root, mlgym_root=args.mlgym_root) for name in ids]
    if args.all:
        specs = _without_missing(specs, args.provider)
    if args.attacks:
        return await attacks.run(args, [spec.id for spec in specs])
    if args.split_seed is not None:
        specs = [spec.on(numbered(args.split_seed)) for spec in specs]
    rows: list[tuple[str, ...]] = []
    complaints: list[str] = []
    agents_gpus, graders_gpus = await asyncio.to_thread(_gpus, args.gpus, specs)
    async with (
        Pool(args.at_once, gpus=agents_gpus) as boxes,
        Pool(args.at_once, gpus=graders_gpus, nested=True) as graders,
    ):
        grader = Grader(graders, args.provider)
        plays = [check(s, boxes, grader, args.provider) for s in specs]
        for spec, solvers in zip(specs, await run_concurrently(plays, args.at_once), strict=True):
            rows += [_row(spec, row) for row in solvers]
            complaints += [f"{r.task}, {r.solver}: {r.problem}" for r in solvers if r.problem]
            if problem := out_of_order(spec, solvers):
                complaints.append(f"{spec.id}: {problem}")
    _table(("task", "solver", "val", "test", "phi", "run s", "grade s", ""), rows)
    for complaint in complaints:
        print(f"mismatch: {complaint}", file=sys.stderr)
    return 1 if complaints else 0


def _gpus(
    gpus: GpuSelection | None, specs: Sequence[TaskSpec]
) -> tuple[GpuPool | None, GpuPool | None]:
    """Returns two GPU pools, one for agents' boxes and one for grader boxes. `gpus` is the value of `--gpus`;
    returns (None, None) if it is None. `specs` are the tasks to run."""
    from air.sandbox.pool.gpu_leases import divided
    from air.sandbox.pool.gpus import plan

    if gpus is None:
        return None, None
    most = max((spec.gpus for spec in specs), default=0)
    reserve = max((spec.grader.gpus for spec in specs), default=0)
    return divided(plan(gpus), box=most, grader=reserve, where="--gpus")


def _without_missing(specs: Sequence[TaskSpec], provider: Provider) -> list[TaskSpec]:
    """Returns the tasks that can run on this machine. For each other task, prints what is missing."""
    from air.tasks.missing import missing

    playable = []
    for spec in specs:
        if lacks := missing(spec, provider):
            print(f"not checked: {spec.id}: needs {', '.join(lacks)}")
        else:
            playable.append(spec)
    return playable


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


def _playable_mlgym(mlgym_root: Path | None) -> list[str]:
    """Returns the ids of the MLGym tasks that can be checked on this machine. For each other MLGym task,
    prints the reason why it cannot be checked."""
    from air.tasks.sources.lookup import mlgym

    checkout = mlgym(mlgym_root)
    ids = []
    for status in [checkout.status(name) for name in checkout.names()] if checkout else []:
        recorded = status.task is not None and status.task.solvers.is_file()
        if status.state == "ready" and recorded:
            ids.append(status.id)
        else:
            reason = status.reason or "no recorded solvers"
            print(f"not checked: {status.id}: {status.state}: {reason}")
    return ids


def _row(task: TaskSpec, row: Checked) -> tuple[str, ...]:
    from air.rewards.normalise import phi_on

    scores = ["-" if v is None else f"{v:.4f}" for v in (row.val, row.test)]
    phi = "-" if row.val is None else f"{phi_on(task, row.val):.2f}"
    grade = f"{row.grade_seconds:.2f}" if row.grade_seconds else "known"
    state = "mismatch" if row.problem else "ok"
    return (row.task, row.solver, *scores, phi, f"{row.exec_seconds:.2f}", grade, state)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table: with borders on a terminal, otherwise with spaces between columns."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if console.is_terminal:
        table = Table(*header)
        for row in rows:
            table.add_row(*row)
        console.print(table)
        return
    print_columns([header, *rows])
