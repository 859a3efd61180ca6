"""Reads a run's evaluations, and finds its best checkpoint by them.

The best checkpoint is never stored as such. It follows from the lines of `evaluations.jsonl`, so it is right
after a resume and in a branch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from air import json_lines
from air.errors import ConfigError

FILE = "evaluations.jsonl"

Row = Mapping[str, Any]
"""One line of `evaluations.jsonl`: the metrics of one evaluation after training step `step`."""


def rows(folder: Path) -> list[dict[str, Any]]:
    """Returns the lines of the run's `evaluations.jsonl`; an empty list if there is no such file."""
    path = folder / FILE
    return [row for _, row in json_lines.read(path)] if path.is_file() else []


def value(row: Row, metric: str) -> float | None:
    """Returns the metric of an evaluation, or None if no episode of it has the metric.
    Raises ConfigError if evaluations have no metric of this name."""
    if metric not in row:
        numbers = (name for name, one in row.items() if isinstance(one, float))
        raise ConfigError(
            f"evaluations have no metric {metric!r}",
            where="embedded.best_metric",
            remedy=f"choose one of {', '.join(sorted(numbers))}",
        )
    return None if row[metric] is None else float(row[metric])


def best_step(evaluations: Sequence[Row], metric: str, steps: Iterable[int]) -> int | None:
    """Returns which of the training steps `steps` was followed by the evaluation with the highest `metric`,
    the earliest of equal ones; None if none of them was evaluated."""
    among = set(steps)
    values = {row["step"]: value(row, metric) for row in evaluations if row["step"] in among}
    known = {step: number for step, number in values.items() if number is not None}
    return min(known, key=lambda step: (-known[step], step)) if known else None


def best_metric(folder: Path) -> str:
    """Returns the metric by which the run in `folder` chooses its best checkpoint, from its `config.json`."""
    try:
        config = json_lines.parsed((folder / "config.json").read_bytes()) or {}
    except OSError:
        config = {}
    return str((config.get("embedded") or {}).get("best_metric", "reward"))
