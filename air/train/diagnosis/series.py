"""Pure functions over the values of one metric: means of first and last steps, and when a problem began."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from air.trajectories import metric_rows

Row = Mapping[str, Any]
"""One line of `metrics.jsonl`, with the current names of metrics."""
Metric = Callable[[Row], float | None]
"""A function that computes a number from a row, or None if the row does not have the values."""

WITHOUT_SPREAD = ("train/value_loss", "ref_kl/mean")
"""Metrics that only the algorithms `gae` and `opd` have, which also learn from groups with equal rewards."""


@dataclass(frozen=True)
class Series:
    """The values of one metric by training step. Means are taken over `window` steps."""

    steps: Sequence[int]
    values: Sequence[float]
    window: int

    @property
    def first(self) -> float:
        """The mean over the first `window` steps."""
        return fmean(self.values[: self.window])

    @property
    def last(self) -> float:
        """The mean over the last `window` steps."""
        return fmean(self.values[-self.window :])

    def began(self, bad: Callable[[float], bool]) -> int | None:
        """Returns the step from which the running mean is bad until the end; None if it is not bad at the
        end.

        The running mean reacts late, so the first bad step in the first bad window is returned.
        """
        means = [
            fmean(self.values[end - self.window : end])
            for end in range(self.window, len(self.values) + 1)
        ]
        start = next((i + 1 for i in reversed(range(len(means))) if not bad(means[i])), 0)
        if start == len(means):
            return None
        window = range(start, start + self.window)
        return self.steps[next((i for i in window if bad(self.values[i])), start)]


def series(rows: Sequence[Row], value: str | Metric, window: int) -> Series | None:
    """Returns the series of a metric: the values of `value`, which is a name or a function of the row.
    Returns None if there are fewer than `window` values."""
    steps, values = [], []
    for row in rows:
        one = metric_rows.number(row, value) if isinstance(value, str) else value(row)
        if one is not None:
            steps.append(int(row["step"]))
            values.append(one)
    return Series(steps, values, window) if len(values) >= window else None


def comparing(rows: Sequence[Row]) -> list[Row]:
    """Returns the rows, without those of algorithms that also learn from groups with equal rewards."""
    return [row for row in rows if not any(name in row for name in WITHOUT_SPREAD)]


def ratio(part: str, whole: str) -> Metric:
    """Returns a function that divides one metric of a row by another."""

    def value(row: Row) -> float | None:
        above, below = metric_rows.number(row, part), metric_rows.number(row, whole)
        return above / below if above is not None and below else None

    return value


def of_updates(name: str) -> Metric:
    """Returns a function that reads a metric of steps that changed the weights; other steps record 0."""

    def value(row: Row) -> float | None:
        return None if row.get("train/updated") == 0 else metric_rows.number(row, name)

    return value


def percent(value: float) -> str:
    """Returns a share between 0 and 1 as a text in percent."""
    return f"{100 * value:.0f} %"
