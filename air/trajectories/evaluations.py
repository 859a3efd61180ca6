"""Reads a run's evaluations, and finds its best checkpoint by them.

No file names the best checkpoint. It is computed from the lines of `evaluations.jsonl`, so it is also right
after a resume and in a branch of a run.
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
    """Returns the metric of an evaluation, or None if no episode of it has the metric."""
    number = row.get(metric)
    return float(number) if isinstance(number, int | float) else None


def check_metric(evaluations: Sequence[Row], metric: str) -> None:
    """Raises ConfigError if evaluations have no metric of this name. This is known only after an evaluation
    in which an episode of every source ended well."""
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
    evaluation followed any of them.

    The best evaluation has the largest share of episodes that ended well, because a mean leaves failed
    episodes out. Among evaluations with the same share, the highest `metric` is best; among equal metrics,
    the earliest.
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
    """Returns whether every source has an episode that ended well."""
    parts = list((row.get("sources") or {}).values()) or [row]
    return all(_share_ended_well(part) > 0 for part in parts)


def _is_metric(cell: object) -> bool:
    return cell is None or isinstance(cell, int | float)


def best_metric(folder: Path) -> str:
    """Returns the metric by which the run in `folder` chooses its best checkpoint, from its `config.json`."""
    try:
        config = json_lines.parsed((folder / "config.json").read_bytes()) or {}
    except OSError:
        config = {}
    return str((config.get("embedded") or {}).get("best_metric", "reward"))
