"""Implements `air tasks check`: runs the reference solutions of tasks, also called solvers, and compares the
scores that they get now with the scores that are recorded for them.

Tasks in the format of Harbor (another project) are checked by `air.cli.harbor_check`; the flag `--attacks`,
which runs attempts to cheat instead of the solutions, is implemented by `air.cli.attacks`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from air.cli import attacks, harbor_check
from air.cli.output import print_table
from air.cli.task_listing import HARBOR

if TYPE_CHECKING:
    from pathlib import Path

    from air.sandbox.pool.gpu_leases import GpuPool
    from air.sandbox.pool.gpus import GpuSelection
    from air.tasks.check import Checked
    from air.tasks.spec import Provider, TaskSpec


async def run(args: argparse.Namespace) -> int:
    """Checks the tasks that the arguments name. Runs their reference solutions (solvers) or, with
    `--attacks`, the attacks of `air.cli.attacks`; Harbor tasks are checked by `air.cli.harbor_check`.
    Returns the exit code: 1 if a score differs from the recorded one, an attack succeeds or a Harbor task is
    not sound, 130 if the user interrupted the attacks, else 0."""
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
    if args.ids and all(name.startswith(HARBOR) for name in args.ids):
        return await harbor_check.run(args, args.ids)
    if any(name.startswith(HARBOR) for name in args.ids):
        raise ConfigError("check Harbor tasks and others apart", where="air tasks check")
    if args.trajectories is not None:
        raise ConfigError("applies only to Harbor tasks", where="--trajectories")
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
    print_table(("task", "solver", "val", "test", "phi", "run s", "grade s", ""), rows)
    for complaint in complaints:
        print(f"mismatch: {complaint}", file=sys.stderr)
    return 1 if complaints else 0


def _gpus(
    gpus: GpuSelection | None, specs: Sequence[TaskSpec]
) -> tuple[GpuPool | None, GpuPool | None]:
    """Divides GPUs into two pools and returns them: one for the sandboxes of agents and one for those of
    graders. `gpus` is the value of `--gpus`; if it is None, returns (None, None). `specs` are the tasks to
    run, which say how many GPUs they need."""
    from air.sandbox.pool.gpu_leases import divided
    from air.sandbox.pool.gpus import plan

    if gpus is None:
        return None, None
    most = max((spec.gpus for spec in specs), default=0)
    reserve = max((spec.grader.gpus for spec in specs), default=0)
    return divided(plan(gpus), box=most, grader=reserve, where="--gpus")


def _without_missing(specs: Sequence[TaskSpec], provider: Provider) -> list[TaskSpec]:
    """Returns those of the tasks `specs` that can run on this machine with boxes of the kind `provider`. For
    each other task, prints what is missing."""
    from air.tasks.missing_resources import missing

    playable = []
    for spec in specs:
        if lacks := missing(spec, provider):
            print(f"not checked: {spec.id}: needs {', '.join(lacks)}")
        else:
            playable.append(spec)
    return playable


def _playable_mlgym(mlgym_root: Path | None) -> list[str]:
    """Returns the ids of those tasks in an MLGym checkout that can be checked on this machine. For each of
    the others, prints why it cannot be checked. `mlgym_root` is the folder of the checkout."""
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
