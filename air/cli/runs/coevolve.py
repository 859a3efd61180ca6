"""Implements the command `air coevolve @ FILE …`: trains two models on each other, in rounds. The proposer
writes questions, and the executor answers them.

If the command is repeated, it continues an unfinished co-evolution.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from air.cli.heavy_imports import collector_paused
from air.cli.runs import resumable

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
    resumable.add_modes(parser, "--report")


def run(args: argparse.Namespace) -> int:
    """Trains two models on each other (a co-evolution): continues with the stages that are not finished yet,
    and prints the report. With `--dry-run`, only prints the settings; with `--report`, only the report.
    Returns the exit code: 130 if interrupted, else 0."""
    from air.train.config import overrides

    with collector_paused():
        from air.train.config.coevolve_config import CoevolveConfig

    config = overrides.build(CoevolveConfig, overrides.parse(args.rest, CoevolveConfig))
    from air.train.coevolve.files import FILE
    from air.train.coevolve.plan import plan

    planned = plan(config)
    if args.dry_run:
        print(json.dumps(config.model_dump(mode="json"), indent=2))
        return 0
    if args.report:
        resumable.check_begun(planned, FILE, "co-evolution")
        planned.check_recorded()  # the report would be computed with the settings of this command
        return _show(planned)
    planned.check()
    return _run(planned)


def _run(planned: Plan) -> int:
    from air.cli.runs.rl import logged

    with collector_paused():
        from air.train.coevolve.coevolve_run import CoevolveRun

    if not resumable.completed(planned, CoevolveRun(planned, resumable.say, logged).run):
        return 130
    return _show(planned)


def _show(planned: Plan) -> int:
    from air.train.coevolve import report
    from air.train.coevolve.files import JSON_FILE, TEXT_FILE

    print(report.text(report.write(planned)))
    resumable.say(f"report in {planned.folder}: {JSON_FILE}, {TEXT_FILE}")
    return 0
