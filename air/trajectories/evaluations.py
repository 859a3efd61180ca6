"""Reads the results of the evaluations in a training run, and finds the run's best checkpoint by them.

The best checkpoint is not stored in a file. It is computed from the lines of `evaluations.jsonl`, so it is
still correct after a run was resumed or went back to an earlier checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from air import json_lines
from air.errors import ConfigError

FILE = "evaluations.jsonl"

Row = Mapping[str, Any]
"""One line of `evaluations.jsonl`: the metrics, by name, of the evaluation after the training step that the
key `step` names."""


def rows(folder: Path) -> list[dict[str, Any]]:
    """Returns the lines of `evaluations.jsonl` in the run's folder; an empty list if there is no such
    file."""
    path = folder / FILE
    return [row for _, row in json_lines.read(path)] if path.is_file() else []


def value(row: Row, metric: str) -> float | None:
    """Returns the value of the metric called `metric` in `row`, the metrics of one evaluation; None if the
    row lacks the metric, or its value is not a number."""
    number = row.get(metric)
    return float(number) if isinstance(number, int | float) else None


def check_metric(evaluations: Sequence[Row], metric: str) -> None:
    """Checks, for a setting that names a metric, that at least one of `evaluations` has a metric called
    `metric`; if none has, raises ConfigError. Does nothing if no evaluation is complete, because the names of
    some metrics are then unknown. An evaluation is complete if every source of tasks in it has at least one
    episode without an infrastructure error."""
    known = {name for row in evaluations for name, one in row.items() if _is_metric(one)}
    if metric in known or not any(_is_complete(row) for row in evaluations):
        return
    numbers = (n for row in evaluations for n, one in row.items() if isinstance(one, float))
    raise ConfigError(
        f"evaluations have no metric {metric!r}",
        where="embedded.best_metric",
        remedy=f"choose one of {', '.join(sorted(set(numbers)))}",
    )


def best_step(evaluations: Sequence[Row], metric: str, steps: Iterable[int]) -> int | None:
    """Returns the training step, out of `steps`, after which the best evaluation was made; None if no
    evaluation after one of these steps has a value of the metric `metric`.

    The best evaluation is the one with the largest share of episodes without an infrastructure error, because
    the mean of a metric ignores episodes with infrastructure errors. With equal shares, the highest `metric`
    decides, then the earliest step.
    """
    among = set(steps)
    ranks: dict[int, tuple[float, float]] = {}
    for row in evaluations:
        number = value(row, metric)
        if row["step"] in among and number is not None:
            ranks[row["step"]] = (_share_ended_well(row), number)
    return min(ranks, key=lambda step: (*(-part for part in ranks[step]), step), default=None)


def _share_ended_well(row: Row) -> float:
    episodes = row.get("episodes") or 0
    return 1 - row.get("failed_episodes", 0) / episodes if episodes else 1.0


def _is_complete(row: Row) -> bool:
    """Returns whether an evaluation (a line of `evaluations.jsonl`) is complete: every source of tasks has at
    least one episode without an infrastructure error, so all metrics have values."""
    parts = list((row.get("sources") or {}).values()) or [row]
    return all(_share_ended_well(part) > 0 for part in parts)


def _is_metric(cell: object) -> bool:
    return cell is None or isinstance(cell, int | float)


def best_metric(folder: Path) -> str:
    """Returns the name of the metric by which the run in `folder` chooses its best checkpoint, from its
    `config.json`; `reward` by default."""
    try:
        config = json_lines.parsed((folder / "config.json").read_bytes()) or {}
    except OSError:
        config = {}
    return str((config.get("embedded") or {}).get("best_metric", "reward"))
