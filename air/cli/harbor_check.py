"""Implements `air tasks check harbor:PATH`: checks whether Harbor tasks (task folders in Harbor's format) are
sound, and prints and writes the results.

A sound task rewards its reference solution, but neither an agent that does nothing nor a hack. A hack is an
attempt to get a reward without solving the task.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from air.cli.attacks import PROGRESS_SECONDS
from air.cli.output import print_columns, safe
from air.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from air.integrity.gate.check import GateVerdict
    from air.integrity.gate.hacks import Hack

HEADER = ("task", "result", "solution", "nothing", "hacks", "s", "findings")
TRAJECTORIES = "trajectories"
"""The name by which `--only` chooses all recorded trajectories."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--verifier",
        choices=("separate", "shared"),
        default="separate",
        help="where tests of Harbor tasks run: separate (default), in a fresh box; or in the agent's",
    )
    parser.add_argument(
        "--trajectories",
        type=Path,
        metavar="PATH",
        help="with --attacks, of Harbor tasks: also replay recorded trajectories (ATIF). PATH is a folder "
        "with a subfolder NAME for the task NAME; for one task, also a folder of files, or a file",
    )


async def run(args: argparse.Namespace, ids: Sequence[str]) -> int:
    """Checks the Harbor tasks with the ids `ids`, and prints a verdict on each. A task is sound if its
    solution earns the reward, and doing nothing (with `--attacks`, also each known hack) earns none. Returns
    the exit code: 1 if a task is not sound, else 0."""
    from air import tasks
    from air.integrity.gate.run import Gate
    from air.tasks.sources.harbor.settings import HarborSettings

    if args.provider != "docker" or args.gpus or args.split_seed is not None:
        raise ConfigError(
            "--provider process, --gpus and --split-seed do not apply to Harbor tasks",
            where="air tasks check harbor:…",
        )
    settings = HarborSettings(verifier=args.verifier).fixed()
    ids = tasks.expanded(ids, settings)
    hacks, replays = _chosen(args, _replays(args, ids, settings.folder))
    progress = Progress(len(ids))
    gate = Gate(settings, args.at_once, hacks, args.report, progress, replays)
    try:
        await gate.run(ids)
    finally:
        _conclude(progress.verdicts, args)
    return 1 if any(one.result != "sound" for one in progress.verdicts) else 0


def _replays(
    args: argparse.Namespace, ids: Sequence[str], root: Path
) -> Mapping[str, Sequence[Hack]]:
    """Returns hacks that replay the trajectories of `--trajectories`, by the task's id. `ids` are the ids of
    the tasks; relative paths in them start at `root`. Prints which files contain nothing to replay, and which
    tasks have no trajectories. Raises ConfigError if there is no `--attacks`, or a file is invalid."""
    from air.integrity.gate.recordings import read_recorded_hacks
    from air.tasks.sources.harbor.ids import locate

    if args.trajectories is None:
        return {}
    if not args.attacks:
        raise ConfigError(
            "has no effect without --attacks", where="--trajectories", remedy="add --attacks"
        )
    folders = {}
    for task in ids:
        with contextlib.suppress(UsageError):  # the task's own verdict will contain the error
            folders[task] = locate(task, root).path
    if not folders:
        return {}
    recorded = read_recorded_hacks(args.trajectories, folders)
    if recorded.skipped:
        files = f"{len(recorded.skipped)} files, such as " if len(recorded.skipped) > 1 else ""
        _warn(f"nothing to replay in {files}{recorded.skipped[0]}")
    if missing := [task for task in ids if task not in recorded.by_task]:
        _warn(f"no trajectories for {', '.join(missing)}")
    return recorded.by_task


def _chosen(
    args: argparse.Namespace, replays: Mapping[str, Sequence[Hack]]
) -> tuple[Sequence[Hack], Mapping[str, Sequence[Hack]]]:
    """Returns the hacks to try on each task, and those to try on one task, by its id. With `--attacks`, these
    are the hacks that `--only` names, or all hacks; without it, none. `replays` are the hacks that replay
    trajectories. Raises ConfigError if `--only` names an unknown hack or is used without `--attacks`."""
    from air.integrity.gate.hacks import HACKS

    names = {hack.name for hacks in (HACKS, *replays.values()) for hack in hacks}
    if replays:
        names.add(TRAJECTORIES)
    if args.only and not args.attacks:
        raise ConfigError("has no effect without --attacks", where="--only", remedy="add --attacks")
    if unknown := [name for name in args.only if name not in names]:
        raise ConfigError(
            f"there is no hack {unknown[0]!r}",
            where="--only",
            remedy=f"use one of: {', '.join(sorted(names))}",
        )
    if not args.attacks:
        return (), {}
    if not args.only:
        return HACKS, replays
    chosen = [hack for hack in HACKS if hack.name in args.only]
    if TRAJECTORIES in args.only:
        return chosen, replays
    return chosen, {
        task: [hack for hack in hacks if hack.name in args.only] for task, hacks in replays.items()
    }


def _conclude(verdicts: Sequence[GateVerdict], args: argparse.Namespace) -> None:
    if not verdicts:
        return  # the check ended before the first task was done
    verdicts = sorted(verdicts, key=lambda one: one.task)
    print_columns([HEADER, *map(_row, verdicts)])
    for verdict in verdicts:
        if verdict.result != "sound":
            _warn(f"{verdict.result}: {verdict.task}: {verdict.reason}")
        for name, reason in verdict.incomplete.items():
            _warn(f"not replayed completely: {verdict.task}: {name}: {reason}")
    if args.report:
        print(f"verdicts: {args.report}")


def _row(verdict: GateVerdict) -> tuple[str, ...]:
    rewards = ("-" if one is None else f"{one:.4g}" for one in (verdict.oracle, verdict.nothing))
    findings = _line(", ".join(dict.fromkeys(one.name for one in verdict.findings)))
    hacks = str(len(verdict.hacks)) if verdict.tried else "-"
    return (
        _line(verdict.task),
        verdict.result,
        *rewards,
        hacks,
        f"{verdict.seconds:.1f}",
        findings,
    )


def _line(text: str) -> str:
    """Returns `text` in one line, without control characters."""
    return safe(" ".join(text.split()))


def _warn(text: str) -> None:
    print(_line(text), file=sys.stderr)


class Progress:
    """Collects the verdicts on Harbor tasks, and prints the number of checked tasks at most once every
    `PROGRESS_SECONDS` seconds. The object is called with each new verdict, which says whether a task is
    sound, and why."""

    def __init__(self, total: int) -> None:
        self._total, self._began = total, time.monotonic()
        self._printed = self._began
        self.verdicts: list[GateVerdict] = []

    def __call__(self, verdict: GateVerdict) -> None:
        self.verdicts.append(verdict)
        now = time.monotonic()
        if now - self._printed >= PROGRESS_SECONDS:
            self._printed = now
            seconds = now - self._began
            line = f"{len(self.verdicts)} of {self._total} tasks after {seconds:.0f} s"
            print(line, file=sys.stderr, flush=True)
