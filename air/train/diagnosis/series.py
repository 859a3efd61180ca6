"""The values of one metric over the steps of a run. The checks of `air doctor` compute from them the means of
the first and last steps, and the step when a problem began."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from air.trajectories import metric_rows

Row = Mapping[str, Any]
"""One line of `metrics.jsonl`: the metrics of one step by name, with outdated names replaced."""
Metric = Callable[[Row], float | None]
"""A function that computes a number from a line of `metrics.jsonl`, or returns None if the line lacks the
metrics for it."""

METRICS_OF_OTHER_ALGORITHMS = ("train/value_loss", "ref_kl/mean")
"""Metrics that only the algorithms `gae` (with a value model) and `opd` (on-policy distillation) record.
Unlike all others, these two also learn from groups (episodes of one task that are compared) with equal
rewards."""


@dataclass(frozen=True)
class Series:
    """The values of one metric of a run, by training step: `values[i]` is the value in step `steps[i]`. Means
    are taken over `window` steps."""

    steps: Sequence[int]
    values: Sequence[float]
    window: int

    @property
    def first(self) -> float:
        """The mean of the metric over the first `window` steps."""
        return fmean(self.values[: self.window])

    @property
    def high_start(self) -> float:
        """The value of the first step or the mean `first`, whichever is larger. Falls are measured from this
        number, because `first` already contains a fall in the first steps."""
        return max(self.values[0], self.first)

    @property
    def low_start(self) -> float:
        """The value of the first step or the mean `first`, whichever is smaller. Rises are measured from this
        number, because `first` already contains a rise in the first steps."""
        return min(self.values[0], self.first)

    @property
    def last(self) -> float:
        """The mean of the metric over the last `window` steps."""
        return fmean(self.values[-self.window :])

    def began(self, bad: Callable[[float], bool]) -> int | None:
        """Returns the step at which a problem began that lasts to the last step, or None if there is no such
        problem. `bad` is called with a value of the metric, and returns whether it shows the problem.

        A problem lasts while `bad` is true for the running mean over `window` steps. The running mean reacts
        late. So the method takes the first window from which on all running means are bad, and returns the
        first step in this window whose own value is bad.
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
    """Returns the values of a metric by step, over those lines of `metrics.jsonl` (`rows`) that have the
    metric. `value` is the metric's name, or a function that computes the metric from a line. Returns None if
    there are fewer than `window` values."""
    steps, values = [], []
    for row in rows:
        one = metric_rows.number(row, value) if isinstance(value, str) else value(row)
        if one is not None:
            steps.append(int(row["step"]))
            values.append(one)
    return Series(steps, values, window) if len(values) >= window else None


def rows_that_need_spread(rows: Sequence[Row]) -> list[Row]:
    """Returns those of `rows` (lines of `metrics.jsonl`) whose algorithm learns only from groups with unequal
    rewards. These are the lines without any of the metrics in `METRICS_OF_OTHER_ALGORITHMS`, which only other
    algorithms write."""
    return [row for row in rows if not any(name in row for name in METRICS_OF_OTHER_ALGORITHMS)]


def ratio(part: str, whole: str) -> Metric:
    """Returns a function that divides the metric `part` of a step by the step's metric `whole`. The function
    takes a line of `metrics.jsonl`, and returns None if a metric is missing or `whole` is 0."""

    def value(row: Row) -> float | None:
        above, below = metric_rows.number(row, part), metric_rows.number(row, whole)
        return above / below if above is not None and below else None

    return value


def of_updates(name: str) -> Metric:
    """Returns a function that reads the metric `name` from a line of `metrics.jsonl`, and returns None if the
    line's step did not change the weights. Such steps record a meaningless 0."""

    def value(row: Row) -> float | None:
        return None if row.get("train/updated") == 0 else metric_rows.number(row, name)

    return value


def percent(value: float) -> str:
    """Returns a share between 0 and 1 as text in percent, such as `25 %`."""
    return f"{100 * value:.0f} %"
