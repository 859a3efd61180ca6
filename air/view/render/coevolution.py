"""Builds the table and the charts of a co-evolution (`air coevolve` trains a model that proposes questions
and a model that answers them, in rounds) from the content of its `report.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from air.view.index.run_discovery import look_up
from air.view.render.charts import Chart
from air.view.render.markup import figure, line

MEANING = (
    "in range: share of proposals with p̂ in the range of the filter; kept: share that the executor is "
    "trained on; novelty: clusters of questions / questions; rewards by both definitions; held out: "
    "accuracy, [95 % interval]; histogram of agreement: bars from p = 0 to p = 1"
)
_HEIGHT = 34
_Round = Mapping[str, Any]


def charts(report: Mapping[str, Any]) -> list[Chart]:
    """Returns charts of a co-evolution (`air coevolve` trains a model that proposes questions and a model
    that answers them, in rounds) with one point for each round: shares of the proposed questions, the mean
    reward of a question, and the accuracy on held-out questions. The rewards have two curves, because the
    paper on the method and its authors' code define the reward differently. `report` is the content of
    `report.json`."""
    rounds: Sequence[_Round] = report["rounds"]

    def curve(*path: str) -> list[tuple[float, float]]:
        values = [(one["round"], look_up(one, *path)) for one in rounds]
        return [(number, value) for number, value in values if value is not None]

    accuracy = {
        "accuracy": curve("held_out", "accuracy"),
        "95 % from": curve("held_out", "low"),
        "95 % to": curve("held_out", "high"),
    }
    shares = {
        "in range": curve("frontier_share"),
        "kept": curve("kept_share"),
        "novelty": curve("novelty"),
    }
    rewards = {
        "as coded": curve("rewards", "as_coded"),
        "published": curve("rewards", "published"),
    }
    return [
        Chart("held-out accuracy", accuracy, x="round", y="accuracy", exact=True),
        Chart("shares of proposals", shares, x="round", y="share", exact=True),
        Chart("mean reward of a proposal", rewards, x="round", y="reward", exact=True),
    ]


def as_html(report: Mapping[str, Any]) -> str:
    """Returns an HTML table about a co-evolution: `air coevolve` trains two models, one that proposes
    questions and one that answers them, in rounds. The table has one row for each round. `report` is the
    content of the file `report.json`, which `air coevolve` writes."""
    heads = (
        *("round", "proposals", "malformed", "in range", "kept", "novelty", "mean p", "tool calls"),
        *("as coded", "published", "held out", "histogram of agreement"),
    )
    head = "".join(f"<th>{name}</th>" for name in heads)
    return f'<table class="air"><tr>{head}</tr>{"".join(map(_row, report["rounds"]))}</table>'


def _row(one: _Round) -> str:
    cells = [
        *(f"{int(one[name])}" for name in ("round", "proposals", "malformed")),
        *(
            figure(one[name], ".3f")
            for name in ("frontier_share", "kept_share", "novelty", "mean_p")
        ),
        figure(one.get("tool_calls"), ".3f"),  # older reports have none
        *(figure(one["rewards"][name], "+z.3f") for name in ("as_coded", "published")),
        _accuracy(one["held_out"]),
        _histogram(one["histogram"]),
    ]
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _accuracy(held_out: Mapping[str, Any] | None) -> str:
    if held_out is None:
        return "–"
    value = figure(held_out["accuracy"], ".3f")
    if held_out["low"] is None:
        return value
    interval = f"{held_out['low']:.3f} – {held_out['high']:.3f}"
    return f"{value}<br><small>{line(interval, 40)}</small>"


def _histogram(counts: Sequence[int]) -> str:
    """Returns the HTML of a small bar chart. Each bar stands for a range of p, the share of a model's answers
    to a question that are equal; its height shows how many questions (`counts`) are in this range. Its
    tooltip has the range and the count."""
    most, bins = max([*counts, 1]), len(counts)
    bars = "".join(
        f'<span title="p from {n / bins:g} to {(n + 1) / bins:g}: {int(count)}" style="display: '
        f"inline-block; width: 9px; margin-right: 1px; height: {1 + _HEIGHT * count / most:.0f}px; "
        'background: #2f9e6e"></span>'
        for n, count in enumerate(counts)
    )
    return f'<span class="histogram" style="white-space: nowrap">{bars}</span>'
