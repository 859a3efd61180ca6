"""Implements the command `air matrix @ FILE …`, which shows how training on some tasks changes the results on
others. For each of several lists of tasks, it trains a model on the tasks of this list; then every trained
model plays all tasks.

If the command is repeated, it continues an unfinished matrix.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from air.cli.heavy_imports import collector_paused
from air.cli.runs import resumable

if TYPE_CHECKING:
    from air.train.matrix.plan import Plan

HELP = "train on each of several worlds and play all of them: air matrix @ FILE"
EXAMPLES = (
    "air matrix @ configs/matrix/tiny.toml --dry-run",
    "air matrix @ configs/matrix/tiny.toml --seeds 0 1 --settings.max-steps 5",
)
TAKES_REST = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "air matrix @ FILE [@ FILE …] [--dotted.key VALUE …] [--dry-run | --results]"
    parser.epilog = (
        "Started again with the same settings, it goes on with what is missing. Rows, columns, seeds and\n"
        "episodes may be added. The results are in the matrix's folder: results.json, results.csv and,\n"
        "with matplotlib, heat_map.png."
    )
    resumable.add_modes(parser, "--results")


def run(args: argparse.Namespace) -> int:
    """Trains a model on each of several lists of tasks, and plays all tasks with every model (together: the
    matrix). Leaves out what is finished already. Prints the results. Returns the exit code: 130 if
    interrupted, 1 if every episode of some model in some task failed because of the machine or air, else
    0."""
    from air.train.config import overrides
    from air.train.config.matrix_config import MatrixConfig

    config = overrides.build(MatrixConfig, overrides.parse(args.rest, MatrixConfig))
    with collector_paused():
        from air.train.matrix.files import FILE
        from air.train.matrix.plan import plan
        from air.train.prime_rl import throughput, throughput_inputs

    planned = plan(config)
    planned.check_tasks()
    for one in planned.trained:
        throughput.check(throughput_inputs.of_embedded(one.config))
    if args.dry_run:
        print(json.dumps(config.model_dump(mode="json"), indent=2))
        return 0
    if args.results:
        resumable.check_begun(planned, FILE, "matrix")
        return _show(planned)
    return _play(planned)


def _play(planned: Plan) -> int:
    with collector_paused():
        from air.cli.runs.rl import logged
        from air.train.matrix import results
        from air.train.matrix.matrix_run import MatrixRun
        from air.train.model import policy

    policy.check_source(planned.start)  # a mistyped name would stay in the matrix's folder

    def on_cells() -> None:
        _draw(planned, results.write(planned))

    matrix = MatrixRun(planned, resumable.say, logged, on_cells)
    if not resumable.completed(planned, matrix.run):
        return 130
    for error in sorted(set(matrix.failures)):
        resumable.say(f"failed: {error}")
    return _show(planned)


def _show(planned: Plan) -> int:
    """Writes the results of the matrix (the score of each trained model in each task) to files, and prints
    their table. Returns the exit code: 1 if a model has no result in some task, else 0."""
    from rich.console import Console

    from air.train.loop.progress import WIDE
    from air.train.matrix import results
    from air.train.matrix.table import table

    found = results.write(planned)
    Console(width=WIDE).print(table(found))
    resumable.say(_draw(planned, found))
    return 1 if any(cell["value"] is None for cell in found["cells"]) else 0


def _draw(planned: Plan, found: dict[str, Any]) -> str:
    """Draws the results `found` (of each model in each task) as a heat map in a file, unless matplotlib is
    missing. Returns a line of text that names the folder and the files of the results."""
    from air.errors import MissingError
    from air.train.matrix.files import CSV_FILE, JSON_FILE, PICTURE
    from air.view import heat_map

    files = f"results in {planned.folder}: {JSON_FILE}, {CSV_FILE}"
    try:
        heat_map.save(planned.folder / PICTURE, found)
    except MissingError as error:  # the picture is an extra
        return f"{files} (no picture: {error})"
    return f"{files}, {PICTURE}"
