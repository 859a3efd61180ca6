"""Implements the command `air doctor [RUN|URL]`, which looks for problems and prints a remedy for each.

Without an argument, the command checks whether boxes (sandboxes for agents' commands) work on this machine.
With RUN, the folder of a training run, it looks for known ways in which training goes wrong. With URL, it
checks whether a server that offers boxes runs programs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from air import paths
from air.cli.boxes.serve import TOKEN_ENV

if TYPE_CHECKING:
    from air.sandbox.ops.doctor import Finding

HELP = "check engine, images, disk, orphans and GPUs, a run's training, or a server; print remedies"
EXAMPLES = (
    "air doctor",
    "air doctor --json",
    "air doctor outputs/my-run",
    "air doctor http://127.0.0.1:8080",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        nargs="?",
        metavar="RUN|URL",
        help="the folder of a training run: look for the known ways in which training goes wrong; or the URL "
        "of a server that speaks SandboxFusion's protocol: run a program there (default: check this machine)",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Runs the checks, and prints their findings (results with remedies). Returns the exit code: 1 if a check
    failed, else 0."""
    if args.what is None:
        from air.sandbox.ops import doctor

        return _report(doctor.examine(), args)
    if args.what.startswith(("http://", "https://")):
        return _report(asyncio.run(_server(args.what)), args)
    return _training(args)


async def _server(url: str) -> list[Finding]:
    from air.serve.http import server_check

    return [finding async for finding in server_check.examine(url, os.environ.get(TOKEN_ENV, ""))]


def _report(checks: Iterable[Finding], args: argparse.Namespace) -> int:
    findings = []
    for finding in checks:
        findings.append(finding)
        if not args.json:
            remedy = re.sub("^air ", f"{paths.command()} ", finding.remedy)
            remedy = f"  → {remedy}" if remedy else ""
            print(f"{finding.state:<5} {finding.check:<16} {finding.seen}{remedy}", flush=True)
    failed = any(finding.state == "fail" for finding in findings)
    if args.json:
        print(
            json.dumps({"ok": not failed, "findings": [asdict(one) for one in findings]}, indent=1)
        )
    return 1 if failed else 0


def _training(args: argparse.Namespace) -> int:
    from air.errors import ConfigError, MissingError
    from air.train.diagnosis import examine
    from air.train.diagnosis.thresholds import LIMITS
    from air.trajectories import metric_rows
    from air.view.render.clean import clean

    folder = Path(args.what)
    if not folder.is_dir():
        raise MissingError("no such run", where=str(folder), remedy="name a folder of outputs/")
    rows = metric_rows.read(folder / metric_rows.FILE)
    if not any("episodes" in row for row in rows):
        raise ConfigError(
            f"no training step in its {metric_rows.FILE}",
            where=str(folder),
            remedy="name the folder of a run of `rl` that has ended its first step",
        )
    findings = examine.examine(rows, needs_spread=examine.needs_spread(folder))
    failed = any(finding.state == "fail" for finding in findings)
    if args.json:
        body = {"ok": not failed, "steps": len(rows), "findings": [asdict(f) for f in findings]}
        print(json.dumps(body, indent=1, allow_nan=False))
        return 1 if failed else 0
    for finding in findings:
        print(
            clean(
                f"{finding.state:<5} {finding.check:<21} since step {finding.step}: {finding.numbers}\n"
                f"      → {finding.remedy}"
            )
        )
    few = len(rows) < LIMITS.fewest_steps
    names = ", ".join(examine.names(short=few))
    ending = f"; trends need {LIMITS.fewest_steps} steps" if few else ""
    print(f"{len(rows)} steps; looked for {names}{ending}")
    if not findings:
        print("ok    nothing of that was found")
    return 1 if failed else 0
