"""Defines the charts of a run, from the lines of its `metrics.jsonl`. All views (app, exported page,
terminal) show the same charts.

The module also smooths curves, and writes a chart's numbers as CSV.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from air.view.render.clean import one_line
from air.view.render.metric_series import names, series, task_series

Row = Mapping[str, Any]
Points = Sequence[tuple[float, float]]
COLOURS = ("#2f6fde", "#e0862f", "#2fa874", "#b259c9", "#d9534a", "#17a2b8", "#8a6d3b", "#7a8499")
_DARK = "#6f9bff #f0a04b #4cc38a #cf8be0 #ff7b72 #4dc4d6 #c2a878 #98a2b3"
DARK_COLOURS = tuple(_DARK.split())
"""The colours of a chart's curves on a dark page, in the order of the curves. `COLOURS` has those on a light
page."""
SMOOTH = 5
"""A smoothed curve shows at each step the mean of this number of values: the value itself and those before
it."""
SMOOTHED_FROM = 9
"""If a curve of a chart has at least this number of points, the chart's curves are also drawn smoothed,
unless the chart's values are exact."""
EACH, MEAN = "each step", f"mean of the last {SMOOTH} steps"
"""The texts of the legend in a chart with smoothed curves: `EACH` explains the thin lines, `MEAN` the thick
ones."""
_SMALL = (
    "entropy/all/mean",
    "mismatch_kl/all/mean",
    "optim/grad_norm",
    "loss/mean",
    "well_formed",
    "turns",
    "tokens",
    "train_tokens",
)


@dataclass(frozen=True)
class Chart:
    """A line chart: its title, the points (x, y) of each curve by the curve's name, and the labels of its
    axes."""

    title: str
    curves: Mapping[str, Points]
    x: str = "training step"
    y: str = ""
    exact: bool = False
    """Whether the values are exact, such as a learning rate, and not noisy measurements. Exact values are
    never smoothed."""

    @property
    def smoothed(self) -> bool:
        """Whether the views also draw smoothed curves (as thick lines), because a curve has many points."""
        longest = max((len(points) for points in self.curves.values()), default=0)
        return longest >= SMOOTHED_FROM and not self.exact

    def strong(self, name: str) -> Points:
        """Returns the points of the thick line for the curve `name`: the smoothed curve, or the curve itself
        if the chart is not smoothed."""
        return smooth(self.curves[name]) if self.smoothed else self.curves[name]


def main(rows: Sequence[Row]) -> list[Chart]:
    """Returns the main charts of a run, from `rows`, the lines of its `metrics.jsonl`: for reinforcement
    learning, the reward of each training step, in total and by task; for supervised training (`sft`), the
    loss and the learning rate. The list is empty for a reinforcement learning run in which no step has a
    reward, because all episodes failed."""
    if any("reward" in row for row in rows):
        rewards = [
            Chart("reward", {"reward": series(rows, "reward")}, y="reward"),
            Chart("reward by task", task_series(rows), y="reward"),
        ]
        return rewards if series(rows, "reward") else []
    losses = {"loss": series(rows, "loss/mean"), "held-out loss": series(rows, "val/loss")}
    charts = [
        Chart(
            "loss", {name: points for name, points in losses.items() if points}, y="nats a token"
        ),
        Chart(
            "learning rate",
            {"learning rate": series(rows, "optim/lr")},
            y="learning rate",
            exact=True,
        ),
    ]
    return [chart for chart in charts if any(chart.curves.values())]


def small(rows: Sequence[Row]) -> list[Chart]:
    """Returns the smaller charts of a run: how far its curricula (which raise the difficulty in training)
    have got, the terms of which the reward is the sum (if there are several), and further metrics such as the
    entropy. `rows` are the lines of the run's `metrics.jsonl`."""
    terms = [name for name in names(rows) if name.startswith("reward/")]
    nonzero = [name for name in terms if any(value for _, value in series(rows, name))]
    extra = nonzero if len(nonzero) > 1 else []  # one term alone is the reward itself
    levels = [name for name in names(rows) if name.startswith("curriculum/")]
    charts = [
        Chart(name, {name: series(rows, name)}, exact=name in levels)
        for name in (*levels, *extra, *_SMALL)
    ]
    shown = [points for chart in main(rows) for points in chart.curves.values()]
    return [
        chart for chart in charts if (points := chart.curves[chart.title]) and points not in shown
    ]


def smooth(points: Points) -> list[tuple[float, float]]:
    """Returns the points of a smoothed curve: each value is replaced by the mean of the last `SMOOTH` values
    up to and including it (of fewer at the beginning of the curve)."""
    values = [value for _, value in points]
    return [(x, fmean(values[max(0, i + 1 - SMOOTH) : i + 1])) for i, (x, _) in enumerate(points)]


def as_csv(chart: Chart) -> str:
    """Returns the numbers of a chart as CSV, with a column for the curve's name, one for x and one for y. The
    values are not smoothed."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["curve", chart.x, chart.y or chart.title])
    for name, points in chart.curves.items():
        writer.writerows((_cell(one_line(name, 80)), f"{x:g}", repr(y)) for x, y in points)
    return file.getvalue()


def file_name(chart: Chart) -> str:
    """Converts a chart's title to a file name without suffix."""
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in chart.title)[:60]


def _cell(name: str) -> str:
    """Returns a curve's name as the content of a CSV cell. If a spreadsheet would read it as a formula, it
    gets a quotation mark at the beginning."""
    return f"'{name}" if name.startswith(("=", "+", "-", "@")) else name
