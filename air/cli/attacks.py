"""Implements `air tasks check --attacks`: plays attacks on tasks, and prints and writes the results.

An attack is a scripted episode that tries to get an undeserved score, or to access files or processes that an
agent must not access. The result of one attack is called a verdict, and all selected attacks together are
called the battery.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from air.cli.heavy_imports import collector_paused
from air.cli.output import print_columns
from air.errors import ConfigError

if TYPE_CHECKING:
    from air.integrity.verdict import AttackVerdict

PROGRESS_SECONDS = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--attacks",
        action="store_true",
        help="play what agents could try to earn or escape a reward, instead of the solvers; "
        "of Harbor tasks, after the solution",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="with --attacks: only this attack, or this family of attacks (all)",
    )
    parser.add_argument(
        "--report",
        type=Path,
        metavar="FILE",
        help="with --attacks, or of Harbor tasks: also write all verdicts as JSON",
    )


def check_flags(args: argparse.Namespace) -> None:
    """Raises ConfigError if a given flag has no effect: `--report` or `--only` without `--attacks`, or
    `--split-seed` or `--gpus` together with `--attacks`."""
    for flag in ("report", "only"):
        if getattr(args, flag) and not args.attacks:
            raise ConfigError(
                "has no effect without --attacks", where=f"--{flag}", remedy="add --attacks"
            )
    if args.attacks and (args.split_seed is not None or args.gpus):
        raise ConfigError(
            "cannot be chosen: attacks are played as a run's episodes are",
            where="--split-seed" if args.gpus is None else "--gpus",
            remedy="set AIR_SPLIT_SEED for another split",
        )


async def run(args: argparse.Namespace, ids: Sequence[str]) -> int:
    """Plays attacks (scripted attempts to cheat) on the tasks with the ids `ids`: those that the flag
    `--only` names, or all if it is not given. Prints the verdicts (results of the attacks). Returns the exit
    code: 1 if an attack succeeded, 130 if the user interrupted the attacks, else 0."""
    with collector_paused():
        from air.aio import cancelled_by_signals
        from air.integrity.attack import FAMILIES
        from air.integrity.attacks import ATTACKS, BOX_ATTACKS
        from air.integrity.battery import Battery, attack_boxes
        from air.integrity.served_boxes import ATTACKS as SERVED_ATTACKS
        from air.integrity.served_boxes import attack_server
        from air.integrity.tools_and_checkers import PART_ATTACKS
        from air.integrity.tools_and_checkers.battery import PartBattery

    attacks = [one for one in ATTACKS if _chosen(args.only, one.name, one.family)]
    on_boxes = [one for one in BOX_ATTACKS if _chosen(args.only, one[1].name, one[0])]
    on_parts = [one for one in PART_ATTACKS if _chosen(args.only, one.name, one.family)]
    on_server = [one for one in SERVED_ATTACKS if _chosen(args.only, one.name, one.family)]
    if not attacks and not on_boxes and not on_parts and not on_server:
        raise ConfigError(
            f"there is no attack and no family with this name: {', '.join(args.only)}",
            where="--only",
            remedy=f"families: {', '.join(FAMILIES)}; a report (--report FILE) lists the attacks",
        )
    each = sum(1 if one.once else len(ids) for one in attacks)
    progress = Progress(each + len(on_boxes) + len(on_parts) + len(on_server))
    with tempfile.TemporaryDirectory(suffix="-air-attacks") as folder:
        battery = Battery(
            ids,
            args.provider,
            attacks,
            task_roots=args.task_root,
            mlgym_root=args.mlgym_root,
            at_once=args.at_once,
            on_verdict=progress,
        )
        try:
            with (
                cancelled_by_signals(_say_already_stopping),
                reported_if_interrupted(progress, args.report),
            ):
                await battery.run(Path(folder))
                await attack_boxes(on_boxes, args.provider, args.at_once, progress)
                parts = PartBattery(on_parts, args.provider, args.at_once, on_verdict=progress)
                await parts.run(Path(folder) / "parts")
                await attack_server(on_server, args.provider, Path(folder) / "server", progress)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or not task.cancelling():  # not by the user
                raise
            return 130
    return 1 if _conclude(progress.verdicts, args.report) else 0


@contextmanager
def reported_if_interrupted(progress: Progress, file: Path | None) -> Iterator[None]:
    """Context manager: if Ctrl-C or SIGTERM ends the `with` block, prints the results of the attacks so far
    and, unless `file` is None, writes them to this file as JSON. Otherwise these results would be lost,
    although the attacks may have run for hours."""
    try:
        yield
    except asyncio.CancelledError:
        print(f"interrupted after {progress}", file=sys.stderr)
        _conclude(progress.verdicts, file)
        raise


def _say_already_stopping() -> None:
    print("already stopping: the boxes are being closed", file=sys.stderr)


def _conclude(verdicts: Sequence[AttackVerdict], file: Path | None) -> bool:
    """Prints a table of the verdicts (results of the attacks) and a line about each successful attack. Unless
    `file` is None, also writes the verdicts to this file as JSON. Returns whether an attack succeeded."""
    from air.integrity import report

    print_columns(report.table(verdicts))
    for line in (lines := report.broken(verdicts)):
        print(f"broken: {line}", file=sys.stderr)
    if file:
        report.write(file, verdicts)
        print(f"all verdicts: {file}")
    return bool(lines)


def _chosen(names: Sequence[str], attack: str, family: str) -> bool:
    return not names or attack in names or family in names


class Progress:
    """Collects the verdicts (results of attacks), and prints the progress at most once every
    `PROGRESS_SECONDS` seconds, and each successful attack at once. The object is called with each new
    verdict."""

    def __init__(self, total: int) -> None:
        self._total, self._began = total, time.monotonic()
        self._printed = self._began
        self.verdicts: list[AttackVerdict] = []

    def __call__(self, verdict: AttackVerdict) -> None:
        self.verdicts.append(verdict)
        if verdict.result == "broken":
            self._print(f"{verdict.task}: {verdict.attack}: {verdict.reason}")
        now = time.monotonic()
        if now - self._printed >= PROGRESS_SECONDS:
            self._printed = now
            self._print(f"{self} after {now - self._began:.0f} s")

    def __str__(self) -> str:
        return f"{len(self.verdicts)} of {self._total}"

    def _print(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)
