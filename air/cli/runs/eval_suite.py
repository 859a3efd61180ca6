"""Implements the flag `--suite` of `air eval`: plays a suite, which is a group of benchmarks (`math` or
`general`), and prints the measured accuracies beside those that a paper published for its models. The user
provides the questions of the benchmarks as files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from air.cli import flags

if TYPE_CHECKING:
    from rich.table import Table

    from air.train.config.embedded_config import ComputeConfig
    from air.train.evaluation.resumable_evaluation import Evaluation
    from air.train.evaluation.settings import Settings
    from air.train.evaluation.suites import Data


_DATA = {
    "math": 'name a folder with math500.jsonl, gsm8k.jsonl, … of rows {"question": …, "answer": …}',
    "general": "name a folder with mmlu_pro.jsonl or supergpqa.jsonl of rows "
    '{"question": …, "options": […], "answer": …}',
}
"""For each suite (group of benchmarks), the advice in an error message about the flag `--data`: which files
the folder must contain."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags `--suite` (the group of benchmarks to play), `--data` (the folder with their questions)
    and `--samples` (the number of replies to each question)."""
    parser.add_argument(
        "--suite",
        choices=("math", "general"),
        help="play the benchmarks of this suite with your own data; the run's settings do not count, "
        "replies have up to 4096 tokens",
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="with --suite: folder with a file of rows for each benchmark, such as gsm8k.jsonl",
    )
    parser.add_argument(
        "--samples",
        type=flags.count,
        metavar="K",
        help="with --suite: replies to each question (default: 1; for AMC and AIME 32)",
    )


def read_data(args: argparse.Namespace) -> list[Data]:
    """Returns the questions of each benchmark of the suite (flag `--suite`) for which the folder `--data` has
    a file. Prints the names of the other benchmarks, which are left out. Returns an empty list if `--suite`
    is not given. Raises ConfigError if flags exclude each other, or if `--suite` is given without
    `--data`."""
    from air.errors import ConfigError

    if args.suite is None:
        for flag in ("data", "samples"):
            if getattr(args, flag) is not None:
                raise ConfigError("goes with --suite", where=f"--{flag}", remedy="add --suite math")
        return []
    for flag, remedy in (
        ("tasks", "leave it out: the suite has its own"),
        ("episodes", "use --samples, the replies to each question"),
    ):
        if getattr(args, flag) is not None:
            raise ConfigError("does not go with --suite", where=f"--{flag}", remedy=remedy)
    if args.data is None:
        raise ConfigError(
            f"the suite {args.suite} needs your data",
            where="--data",
            remedy=_DATA[args.suite],
        )
    from air.train.evaluation.suites import data_of

    data, missing = data_of(args.suite, args.data.expanduser(), args.samples)
    for line in missing:
        print(line, file=sys.stderr)
    return data


def settings(
    args: argparse.Namespace, data: list[Data], renderer: Any, compute: ComputeConfig
) -> Settings:
    """Returns the settings, such as the temperature, with which every model plays the benchmarks `data` of a
    suite: the values of the flags, or the suite's defaults. `renderer` is a config of the package
    `renderers`, or None; `compute` chooses the device and the type of the weights."""
    from air.train.evaluation.suite_evaluation import suite_settings

    return suite_settings(
        data,
        runtime=args.runtime or "docker",
        temperature=args.temperature,
        max_tokens=args.max_tokens,
        context=args.context,
        max_turns=args.max_turns,
        renderer=renderer,
        compute=compute,
    )


def table(suite: str, evaluations: Sequence[Evaluation]) -> Table:
    """Returns a table to print: for each benchmark of the suite (group of benchmarks) `suite`, the accuracies
    that were measured in `evaluations`, and those that a paper published for its models."""
    from air.train.evaluation.suite_evaluation import SuiteEvaluation, suite_table
    from air.train.evaluation.suites import SUITES

    return suite_table(
        SUITES[suite], [one for one in evaluations if isinstance(one, SuiteEvaluation)]
    )
