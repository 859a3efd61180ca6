"""The command `air coevolve @ FILE …`: a proposer of questions and an executor train each other, in rounds.

Started again, it goes on with what is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from air.train.coevolve.plan import Plan

HELP = "train a proposer of questions and an executor on each other: air coevolve @ FILE"
EXAMPLES = (
    "air coevolve @ configs/agent0/small.toml --dry-run",
    "air coevolve @ configs/agent0/small.toml --rounds 2 --payment.repetition 0 --name copies",
)
TAKES_REST = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "air coevolve @ FILE [@ FILE …] [--dotted.key VALUE …] [--dry-run | --report]"
    parser.epilog = (
        "Started again with the same settings, it goes on with what is missing; rounds may be added.\n"
        "The report is in the folder of the co-evolution: report.json and report.txt."
    )
    only = parser.add_mutually_exclusive_group()
    only.add_argument(
        "--dry-run", action="store_true", help="check and print the settings, then stop"
    )
    only.add_argument(
        "--report", action="store_true", help="show what is recorded; train and play nothing"
    )


def run(args: argparse.Namespace) -> int:
    """Does what is missing and shows the report."""
    from air.errors import MissingError
    from air.train.config import overrides
    from air.train.config.coevolve_config import CoevolveConfig

    config = overrides.build(CoevolveConfig, overrides.parse(args.rest, CoevolveConfig))
    from air.train.coevolve.files import FILE
    from air.train.coevolve.plan import plan

    planned = plan(config)
    if args.dry_run:
        print(json.dumps(config.model_dump(mode="json"), indent=2))
        return 0
    if args.report:
        if not (planned.folder / FILE).is_file():
            raise MissingError(
                "no co-evolution is here yet", where=str(planned.folder), remedy="start it first"
            )
        return _show(planned)
    planned.check()
    return _run(planned)


def _run(planned: Plan) -> int:
    from air.cli.runs.rl import logged
    from air.train.coevolve.coevolve_run import CoevolveRun
    from air.train.loop import run_folder

    with run_folder.locked(planned.folder):
        planned.claim()
        try:
            asyncio.run(CoevolveRun(planned, _say, logged).run())
        except (KeyboardInterrupt, asyncio.CancelledError):
            _say("interrupted; what is done is kept; the same command goes on")
            return 130
    return _show(planned)


def _show(planned: Plan) -> int:
    from air.train.coevolve import report
    from air.train.coevolve.files import JSON_FILE, TEXT_FILE

    print(report.text(report.write(planned)))
    _say(f"report in {planned.folder}: {JSON_FILE}, {TEXT_FILE}")
    return 0


def _say(text: str) -> None:
    print(text, flush=True)
