"""Summarises the episodes of a matrix, and writes the results to `results.json` and `results.csv`.

A matrix is a table: each row is a list of tasks, on which one model is trained; each column is a task, on
which the models are evaluated. A cell's value is the mean success of its episodes, or their mean reward if
the column's task does not report success. Each value has a 95 % confidence interval. `results.json` is

    {"v": 1, "rows": […], "columns": […],
     "cells": [{"row": …, "column": …, "value": …, "low": …, "high": …}]}

with more keys; `low` and `high` are the bounds of the value's interval. For a cell without episodes, all
three numbers are null. For a cell with a single episode, the bounds are null unless its value is 0 or 1.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from air import paths
from air.errors import UsageError
from air.train.evaluation.episode_scores import EpisodeScores
from air.train.matrix.files import CSV_FILE, JSON_FILE
from air.train.matrix.intervals import Interval, interval
from air.train.matrix.plan import Plan

_CSV_COLUMNS = (
    *("row", "column", "trained_on", "measure", "value", "low", "high", "interval"),
    *("reward", "reward_low", "reward_high", "seeds", "episodes"),
)


def results(plan: Plan) -> dict[str, Any]:
    """Computes the value of each cell from the recorded episodes in the matrix's folder, and returns the
    content of `results.json`."""
    config = plan.config
    rows = list(dict.fromkeys(one.row for one in plan.trained))
    cells = []
    for row in rows:
        mine = [one for one in plan.trained if one.row == row]
        for column in config.columns:
            by_seed = {
                one.seed: plan.evaluation(one, "", column).episodes()[: config.evaluation.episodes]
                for one in mine
            }
            trained = column in config.rows.get(row, [])
            cells.append({"row": row, "column": column, "trained_on": trained, **_cell(by_seed)})
    return {
        "v": 1,
        "name": config.name,
        "model": plan.trained[0].config.model.name,
        "rows": rows,
        "columns": config.columns,
        "cells": cells,
    }


def _cell(by_seed: Mapping[int | None, Sequence[EpisodeScores]]) -> dict[str, Any]:
    every = [played for episodes in by_seed.values() for played in episodes]
    measure = "success" if all(played.success is not None for played in every) else "reward"
    rewards = [[played.reward for played in episodes] for episodes in by_seed.values()]
    successes = [[played.success or 0.0 for played in episodes] for episodes in by_seed.values()]
    reward = interval(rewards)
    main = interval(successes) if measure == "success" else reward
    return {
        "measure": measure,
        **_numbers("value", main),
        "interval": None if main is None else main.method,
        **_numbers("reward", reward),
        "seeds": sum(1 for episodes in by_seed.values() if episodes),
        "episodes": len(every),
        "by_seed": [
            {
                "seed": seed,
                "value": fmean(values) if values else None,
                "episodes": len(values),
            }
            for seed, values in zip(
                by_seed, successes if measure == "success" else rewards, strict=True
            )
        ],
    }


def _numbers(name: str, found: Interval | None) -> dict[str, float | None]:
    low, high = ("low", "high") if name == "value" else (f"{name}_low", f"{name}_high")
    if found is None:
        return {name: None, low: None, high: None}
    return {name: found.value, low: found.low, high: found.high}


def write(plan: Plan) -> dict[str, Any]:
    """Writes `results.json` and `results.csv` into the matrix's folder; returns the content of
    `results.json`. Raises UsageError if the files cannot be written."""
    table = results(plan)
    try:
        paths.write_whole(plan.folder / JSON_FILE, f"{json.dumps(table, indent=1)}\n".encode())
        paths.write_whole(plan.folder / CSV_FILE, as_csv(table).encode())
    except OSError as error:
        raise UsageError(
            f"cannot be written: {error.strerror}", where=str(plan.folder), remedy="free space"
        ) from None
    return table


def as_csv(table: Mapping[str, Any]) -> str:
    """Returns CSV text with a header and one line for each cell in `table`, the content of `results.json`."""
    file = io.StringIO()
    writer = csv.DictWriter(file, _CSV_COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(table["cells"])
    return file.getvalue()
