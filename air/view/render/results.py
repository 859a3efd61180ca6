"""Builds a table with the mean score of each model on each task, for the models of several runs."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from air.view.render.clean import one_line
from air.view.render.markup import figure
from air.view.render.overview import short

SCORES = {
    "last validate": "score",
    "best validate": "best",
    "test split": "test",
    "reward": "reward",
}
"""The kinds of numbers that the table can show. Maps the name that users see to the field of `Facts` (the
main facts about an episode)."""


@dataclass(frozen=True)
class Cell:
    """Statistics of the values (scores or rewards) of one model's episodes on one task. `n` is the number of
    all episodes; `scored` is the number of those that have a value, and `mean` their mean."""

    n: int
    scored: int
    mean: float | None
    stderr: float | None
    """The standard error of the mean. None if there are fewer than two values."""

    def __str__(self) -> str:
        if self.mean is None:
            return f"– ({self.n})"
        error = "" if self.stderr is None else f" ± {figure(self.stderr, '.2g')}"
        count = str(self.n) if self.scored == self.n else f"{self.scored} of {self.n}"
        return f"{figure(self.mean)}{error} ({count})"


@dataclass
class Results:
    """A table of scores or rewards: `cells` maps each pair (run, model) to a dict from the task's id to the
    statistics of the episodes."""

    cells: dict[tuple[str, str], dict[str, Cell]] = field(default_factory=dict)
    tasks: dict[str, tuple[str, float | None]] = field(default_factory=dict)
    """Maps each task id to the task's label (metric and direction) and baseline."""
    changed: set[str] = field(default_factory=set)
    """The ids of tasks whose metric, direction or baseline differs between episodes, so that their values
    cannot be compared."""


def results(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Results:
    """Builds the table for several runs. `runs` maps each run's name to the result of `RunIndex.scores`,
    which has a value for each episode."""
    table = Results()
    values: dict[tuple[str, str], dict[str, list[float | None]]] = {}
    for run, episodes in runs.items():
        for one in episodes:
            arrow = "↓" if one["direction"] == "lower" else "↑"
            facts = (f"{one['metric'] or 'score'} {arrow}", one["baseline"])
            if table.tasks.setdefault(one["task"], facts) != facts:
                table.changed.add(one["task"])
            model = values.setdefault((run, one["model"] or "–"), {})
            model.setdefault(one["task"], []).append(one["value"])
    for key, by_task in values.items():
        table.cells[key] = {task: cell(found) for task, found in by_task.items()}
    return table


def cell(values: Sequence[float | None]) -> Cell:
    """Returns the statistics of `values`. There is one value for each episode, which is None for an episode
    without a score."""
    scored = [value for value in values if value is not None]
    error = stdev(scored) / math.sqrt(len(scored)) if len(scored) > 1 else None
    return Cell(len(values), len(scored), fmean(scored) if scored else None, error)


def rows(table: Results) -> tuple[list[str], list[list[str]]]:
    """Converts the table to text. Returns the names of the columns, and the rows: first one with the tasks'
    baselines, then one for each model of each run."""
    tasks = sorted(table.tasks)
    heads = ["run", "model", *(f"{task} · {table.tasks[task][0]}" for task in tasks)]
    baseline = ["baseline", "", *(figure(table.tasks[task][1]) for task in tasks)]
    body = [
        [run, short(model), *(str(cells[task]) if task in cells else "" for task in tasks)]
        for (run, model), cells in table.cells.items()
    ]
    return heads, [baseline, *body]


def as_csv(table: Results, value: str) -> str:
    """Returns the table as CSV, with one line for each cell. `value` is the name of the shown numbers (a key
    of `SCORES`), for the head of the column."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["run", "model", "task", "metric", "n", "scored", f"mean {value}", "stderr"])
    for (run, model), cells in table.cells.items():
        for task, one in cells.items():
            names = (one_line(name, 200) for name in (run, model, task, table.tasks[task][0]))
            writer.writerow([*names, one.n, one.scored, one.mean, one.stderr])
    return file.getvalue()
