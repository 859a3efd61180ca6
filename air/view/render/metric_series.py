"""Extracts numbers from the lines of a run's `metrics.jsonl` (one line for each training step), for tables
and charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from air.view.index.facts import number

Row = Mapping[str, Any]
TIMES = ("model", "exec", "grading", "queue")
"""The activities on which an episode spends time: `model` (replies of the model), `exec` (commands in the
box, the agent's container), `grading`, and `queue` (waiting, for instance for a box)."""


def series(rows: Sequence[Row], name: str) -> list[tuple[int, float]]:
    """Returns the values of the metric `name`: a pair (step, value) for each line of `metrics.jsonl` that has
    a number for it."""
    return [(int(row["step"]), v) for row in rows if (v := number(row.get(name))) is not None]


def quarters(rows: Sequence[Row], name: str) -> tuple[float | None, float | None]:
    """Returns two means of the metric `name`: over the first quarter and over the last quarter of those
    training steps that have the metric. Both are None if no step has it."""
    values = [value for _, value in series(rows, name)]
    if not values:
        return None, None
    size = max(1, len(values) // 4)
    return fmean(values[:size]), fmean(values[-size:])


def names(rows: Sequence[Row]) -> list[str]:
    """Returns the names of all metrics that have a number in at least one line of `metrics.jsonl`, in order
    of appearance."""
    columns: dict[str, None] = {}
    for row in rows:
        columns |= dict.fromkeys(name for name, v in row.items() if number(v) is not None)
    return [name for name in columns if name != "step"]


def task_series(rows: Sequence[Row], name: str = "reward") -> dict[str, list[tuple[int, float]]]:
    """Returns the values of the metric `name` for each task: a dict that maps the task id to pairs (step,
    value). `rows` are lines of `metrics.jsonl`."""
    points: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        tasks = row.get("tasks")
        for task, values in tasks.items() if isinstance(tasks, Mapping) else ():
            value = number(values.get(name)) if isinstance(values, Mapping) else None
            if value is not None:
                points.setdefault(str(task), []).append((int(row["step"]), value))
    return points


def times(row: Row) -> dict[str, float | None]:
    """Returns the seconds that all episodes together spent on each activity in `TIMES`, by activity (None:
    unknown). `row` is a line of `metrics.jsonl`, or the result of `RunIndex.totals`."""
    return {name: number(row.get(f"seconds_{name}")) for name in TIMES}
