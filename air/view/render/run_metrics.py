"""What the rows of `metrics.jsonl` say, as plain numbers for tables and charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from air.view.index.facts import number

Row = Mapping[str, Any]
SMOOTH = 5
TIMES = ("model", "exec", "grading", "queue")
"""Where an episode's time goes."""


def series(rows: Sequence[Row], name: str) -> list[tuple[int, float]]:
    """A metric by step, where it is there."""
    return [(int(row["step"]), v) for row in rows if (v := number(row.get(name))) is not None]


def smooth(points: Sequence[tuple[int, float]], width: int = SMOOTH) -> list[tuple[int, float]]:
    """The mean over each point and the `width` - 1 before it."""
    values = [value for _, value in points]
    return [
        (step, fmean(values[max(0, i + 1 - width) : i + 1])) for i, (step, _) in enumerate(points)
    ]


def quarters(rows: Sequence[Row], name: str) -> tuple[float | None, float | None]:
    """A metric's mean over the first and over the last quarter of the steps."""
    values = [value for _, value in series(rows, name)]
    if not values:
        return None, None
    size = max(1, len(values) // 4)
    return fmean(values[:size]), fmean(values[-size:])


def names(rows: Sequence[Row]) -> list[str]:
    """The metrics that are numbers, in order of appearance."""
    found: dict[str, None] = {}
    for row in rows:
        found |= dict.fromkeys(name for name, v in row.items() if number(v) is not None)
    return [name for name in found if name != "step"]


def task_series(rows: Sequence[Row], name: str = "reward") -> dict[str, list[tuple[int, float]]]:
    """A figure of each task by step."""
    found: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        tasks = row.get("tasks")
        for task, values in tasks.items() if isinstance(tasks, Mapping) else ():
            value = number(values.get(name)) if isinstance(values, Mapping) else None
            if value is not None:
                found.setdefault(str(task), []).append((int(row["step"]), value))
    return found


def times(row: Row) -> dict[str, float | None]:
    """Where time went, of a row or of totals."""
    return {name: number(row.get(f"seconds_{name}")) for name in TIMES}
