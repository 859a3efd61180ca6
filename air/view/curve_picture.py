"""Draws the learning curves of one or several runs as one picture (PNG), with the library matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from air.errors import MissingError, UsageError
from air.view.index.facts import number
from air.view.render.charts import EACH, MEAN, SMOOTHED_FROM, Points, smooth
from air.view.render.clean import one_line
from air.view.render.metric_series import names, series

Row = Mapping[str, Any]
COLOURS = ("#3b6fd4", "#e08a1e", "#2f9e6e", "#c0433f", "#8458b3", "#7a6a58", "#d667a6", "#4aa5b8")
DASHES = ("-", "--", ":", "-.")
"""Line styles of matplotlib. If there are more runs than colours, the colours are used again with the next
style."""
_WIDTH, _HEIGHT = 4.6, 2.9
"""The size of one chart of the picture in inches."""
_PHASES = {
    "time/wait_for_batch": "episodes",
    "time/train": "update",
    "time/broadcast_weights": "weights to the server",
}


@dataclass(frozen=True)
class Curve:
    """One curve in a chart: its label in the legend, and its points (x, y)."""

    label: str
    points: Points
    number: int = 0
    """The curve's position, from 0, which determines its colour and line style."""
    band: tuple[Points, Points] | None = None
    """The lower and the upper edge of a shaded area around the curve; None: no area."""


@dataclass(frozen=True)
class Panel:
    """One of the charts of which the picture of a run's learning curves consists, with its title and
    curves."""

    title: str
    curves: Sequence[Curve]
    log: bool = False
    """Whether the vertical axis is logarithmic."""
    share: bool = False
    """Whether the values are shares (fractions), shown on an axis from 0 to 1."""


def panels(runs: Mapping[str, Sequence[Row]]) -> list[Panel]:
    """Returns the charts of the picture, without empty ones. `runs` maps each run's name to the lines of its
    `metrics.jsonl`. For a single run, a chart may have several curves; for several runs, it has one curve for
    each run."""
    one = len(runs) == 1
    rewarded = any("reward" in row for rows in runs.values() for row in rows)
    losses = {"training": "loss/mean", "held out": "val/loss"}
    made = [
        _panel(runs, "reward", {"training": "reward", "held-out evaluation": "eval/reward"}),
        # The loss of a policy gradient says nothing about learning; that of a warm start is the result.
        None if rewarded else _panel(runs, "loss (nats per token)", losses),
        _terms(next(iter(runs.values()))) if one else None,
        _panel(runs, "normalised score φ", {"validation": "phi", "test": _test_phi}),
        _panel(runs, "entropy (nats per token)", {"entropy": _of_updates("entropy/all/mean")}),
        _panel(
            runs,
            "sampler against trainer: mismatch_kl (nats)",
            {
                "mean": _of_updates("mismatch_kl/all/mean"),
                "largest": _of_updates("mismatch_kl/all/max"),
            },
            log=True,
        ),
        _panel(runs, "distance from the reference (nats)", {"KL": "train/reference_kl"}),
        _panel(runs, "gradient norm", {"gradient norm": _of_updates("optim/grad_norm")}, log=True),
        _panel(
            runs,
            "tokens sampled in an episode",
            {"mean, with p10 to p90": "train/agg/effective/num_output_tokens/mean"},
            band="train/agg/effective/num_output_tokens",
        ),
        _panel(
            runs,
            "shares",
            {
                "well-formed replies": "well_formed",
                "groups without spread": _share("zero_spread_groups", "groups"),
                "failed episodes": _share("failed_episodes", "episodes"),
            },
            share=True,
        ),
        _panel(
            runs,
            "seconds of a step",
            {label: name for name, label in _PHASES.items()} if one else {"step": "time/step"},
        ),
    ]
    return [panel for panel in made if panel is not None and panel.curves]


Value = str | Callable[[Row], float | None]
"""The name of a metric, or a function that computes a number from a line of `metrics.jsonl` (None: no
number)."""


def _panel(
    runs: Mapping[str, Sequence[Row]],
    title: str,
    values: Mapping[str, Value],
    *,
    band: str = "",
    log: bool = False,
    share: bool = False,
) -> Panel:
    curves: list[Curve] = []
    shown = dict(values) if len(runs) == 1 else dict(list(values.items())[:1])
    for order, (run, rows) in enumerate(runs.items()):
        for place, (label, value) in enumerate(shown.items()):
            points = _points(rows, value)
            if log:
                points = [(x, y) for x, y in points if y > 0]
            edges = (_points(rows, f"{band}/p10"), _points(rows, f"{band}/p90")) if band else None
            if points:
                one = len(runs) == 1
                curves.append(Curve(label if one else run, points, place if one else order, edges))
    if len(runs) > 1 and len(values) > 1 and title != "reward":
        title = f"{title}: {next(iter(values))}"
    return Panel(title, curves, log=log, share=share)


def _points(rows: Sequence[Row], value: Value) -> list[tuple[float, float]]:
    if isinstance(value, str):
        return [(float(x), y) for x, y in series(rows, value)]
    return [(float(row["step"]), y) for row in rows if (y := value(row)) is not None]


def _terms(rows: Sequence[Row]) -> Panel:
    """Returns the chart of the terms of which the reward is the sum, without terms that are always 0. `rows`
    are the lines of a run's `metrics.jsonl`."""
    curves: list[Curve] = []
    for name in names(rows):
        points = series(rows, name) if name.startswith("reward/") else []
        if any(value for _, value in points):
            curves.append(Curve(name.removeprefix("reward/"), points, len(curves)))
    return Panel("terms of the reward", curves)


def _of_updates(name: str) -> Callable[[Row], float | None]:
    """Returns a function that reads the metric `name`, such as the gradient norm, from a line of
    `metrics.jsonl`. The function returns None for a training step that did not change the model's weights,
    because the line of such a step has a meaningless 0."""
    return lambda row: None if row.get("train/updated") == 0 else number(row.get(name))


def _test_phi(row: Row) -> float | None:
    """Returns the mean score on the test split, normalised so that 0 is the baseline and 1 the target, from a
    line of `metrics.jsonl`: the line has this mean for the validation split (`phi`), from which its value
    `validation_test_gap` is subtracted. Returns None if the line lacks one of the two."""
    phi, gap = number(row.get("phi")), number(row.get("validation_test_gap"))
    return None if phi is None or gap is None else phi - gap


def _share(part: str, whole: str) -> Callable[[Row], float | None]:
    return lambda row: row[part] / row[whole] if row.get(whole) and part in row else None


def save(path: Path, runs: Mapping[str, Sequence[Row]]) -> None:
    """Writes the learning curves of `runs` to the PNG file `path`. `runs` maps each run's name to the lines
    of its `metrics.jsonl`.

    Raises MissingError if matplotlib is not installed, and UsageError if the runs have no metrics or the file
    cannot be written.
    """
    drawn = panels(runs)
    if not drawn:
        raise UsageError("no training steps to plot", where=", ".join(runs) or "runs")
    try:
        from matplotlib.figure import Figure
        from matplotlib.lines import Line2D
    except ImportError:
        raise MissingError(
            "--plot needs the package matplotlib", remedy="pip install 'air-agent[plot]'"
        ) from None
    columns = min(3, len(drawn))
    lines = -(-len(drawn) // columns)
    figure = Figure(
        figsize=(_WIDTH * columns, _HEIGHT * lines + 0.6), dpi=110, layout="constrained"
    )
    axes = figure.subplots(lines, columns, squeeze=False).flatten()
    steps = [x for panel in drawn for curve in panel.curves for x, _ in curve.points]
    for axis, panel in zip(axes, drawn, strict=False):
        _draw(axis, panel, legend=len(runs) == 1)
        axis.set_xlim(min(steps) - 0.5, max(steps) + 0.5)
        axis.xaxis.get_major_locator().set_params(integer=True)
    for axis in axes[len(drawn) :]:
        axis.set_axis_off()
    if len(runs) == 1:
        figure.suptitle(one_line(next(iter(runs)), 100), fontsize=11)
    else:
        handles = [
            Line2D([], [], label=one_line(name, 60), linewidth=2.5, **_style(number))
            for number, name in enumerate(runs)
        ]
        columns = min(4, len(runs))
        figure.legend(handles=handles, loc="outside upper center", ncols=columns, frameon=False)
    if any(len(c.points) >= SMOOTHED_FROM for panel in drawn for c in panel.curves):
        figure.supxlabel(f"thin lines: {EACH}; thick lines: {MEAN}", fontsize=8, color="#666666")
    try:
        figure.savefig(path, format="png")
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", where=str(path)) from error


def _draw(axis: Any, panel: Panel, *, legend: bool) -> None:
    """Draws the chart `panel` on the matplotlib axis `axis`, with a legend if `legend` is true. If a curve
    has many points, the values are a thin line, and their running mean is a thick line."""
    for curve in panel.curves:
        style = _style(curve.number)
        colour = style["color"]
        x, y = [step for step, _ in curve.points], [value for _, value in curve.points]
        label = one_line(curve.label, 60)
        if curve.band and all(curve.band):
            (low_x, low), (_, high) = (zip(*edge, strict=True) for edge in curve.band)
            axis.fill_between(low_x, low, high, color=colour, alpha=0.15, linewidth=0)
        if len(curve.points) >= SMOOTHED_FROM:
            axis.plot(x, y, color=colour, alpha=0.3, linewidth=0.8)
            y = [value for _, value in smooth(curve.points)]
        marker = "o" if len(x) == 1 else None
        axis.plot(x, y, linewidth=1.8, label=label, marker=marker, **style)
    axis.set_title(panel.title, fontsize=10, loc="left")
    axis.set_xlabel("training step", fontsize=8)
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.25, linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    values = {value for curve in panel.curves for _, value in curve.points}
    if panel.log and len(values) > 1:  # matplotlib cannot scale an axis of one value
        axis.set_yscale("log")
    if panel.share:
        axis.set_ylim(-0.03, 1.03)
    if legend and len(panel.curves) > 1:
        axis.legend(fontsize=8, frameon=False)


def _style(number: int) -> dict[str, Any]:
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[number // len(COLOURS) % len(DASHES)],
    }
