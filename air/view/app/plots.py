"""Makes the charts of the viewer's app, with the library Altair.

Recorded values are passed to a chart only as data, never in the chart's specification, because the browser
could evaluate text in the specification as an expression.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import pandas  # noqa: F401  altair uses it; half imported by another tab's thread, it breaks a chart

from air.view.index.facts import Place
from air.view.render.charts import EACH, MEAN, Chart
from air.view.render.clean import one_line
from air.view.render.metric_series import TIMES

TIME_COLOURS = ["#4c7dea", "#2fa874", "#e0962f", "#9aa3b2"]
HEIGHT = 240
_NUMBER = ".6~g"
"""The format of numbers at an axis (6 significant digits). With fewer digits, 850 could become 8.5e+2."""
_CROWDED = 9
"""If a curve of a chart has at least this number of points, the points are drawn smaller."""
_ORDER = alt.EncodingSortField("order", op="min", order="ascending")
"""A setting for Altair that keeps the curves of a chart in the given order. By default, Altair sorts them by
name."""


def lines(chart: Chart, *, height: int = HEIGHT, clickable: bool = False) -> Any:
    """Returns a line chart as an Altair object, `height` pixels high, with straight lines between the points.

    If a curve has many points, the values are a thin line and their running mean is a thick line. A legend
    explains thin and thick lines, unless the chart is lower than `HEIGHT`. The colours of the curves are
    explained outside of the chart (`markup.legend`), because the chart would cut a legend that is wider than
    the page. If `clickable` is true, a click on a point makes Streamlit report the point's fields `step` and
    `name` under the name `pick`.
    """
    explained = chart.smoothed and height >= HEIGHT
    values = alt.Axis(format=_NUMBER, tickCount=4)
    base = alt.Chart(_data(chart)).encode(
        x=alt.X(
            "step:Q",
            title=chart.x,
            scale=alt.Scale(nice=False, zero=False),
            axis=alt.Axis(tickMinStep=1, grid=False, format="d"),
        ),
        y=alt.Y("value:Q", title=chart.y or None, scale=alt.Scale(zero=False), axis=values),
        color=alt.Color("name:N", title=None, sort=_ORDER, legend=None),
        tooltip=[
            "name:N",
            alt.Tooltip("step:Q", title=chart.x),
            alt.Tooltip("value:Q", format=".4~g", title=chart.y or "value"),
            alt.Tooltip("kind:N", title="shown"),
        ],
    )
    drawn = base.mark_line(interpolate="linear", **({} if chart.smoothed else {"strokeWidth": 2}))
    if chart.smoothed:
        kinds = [EACH, MEAN]
        legend = alt.Legend(orient="bottom", symbolType="stroke") if explained else None
        common: dict[str, Any] = {"title": None, "sort": kinds, "legend": legend}
        width, opacity = (alt.Scale(domain=kinds, range=r) for r in ([1, 2.5], [0.35, 1]))
        drawn = drawn.encode(
            strokeWidth=alt.StrokeWidth("kind:N", scale=width, **common),
            strokeOpacity=alt.StrokeOpacity("kind:N", scale=opacity, **common),
        )
    strong = base.transform_filter(alt.datum.strong)
    longest = max((len(points) for points in chart.curves.values()), default=0)
    dots = strong.mark_circle(
        size=36 if longest < _CROWDED else 6 if chart.exact else 12, opacity=1
    )
    layers = [drawn, dots]
    if clickable:
        pick = alt.selection_point(name="pick", fields=["step", "name"], on="click", empty=False)
        around = strong.mark_circle(size=250, opacity=0.01, cursor="pointer")  # the dots are small
        layers.append(around.add_params(pick))
    return alt.layer(*layers).properties(height=height)


def time_split(rows: Sequence[Mapping[str, Any]], *, height: int = HEIGHT) -> Any:
    """Returns a bar chart as an Altair object: the seconds that all episodes of each training step spent on
    each activity. `rows` are lines of `metrics.jsonl`, one for each step. `height` is in pixels."""
    data = [
        {"step": row["step"], "name": name, "value": float(row.get(f"seconds_{name}") or 0)}
        for row in rows
        for name in TIMES
    ]
    return (
        alt.Chart(alt.Data(values=data))
        .mark_bar()
        .encode(
            x=alt.X(
                "step:O", title="training step", axis=alt.Axis(labelOverlap=True, labelAngle=0)
            ),
            y=alt.Y("value:Q", title="seconds"),
            color=alt.Color(
                "name:N",
                title=None,
                scale=alt.Scale(domain=list(TIMES), range=TIME_COLOURS),
                legend=alt.Legend(orient="top"),
            ),
            tooltip=["step:O", "name:N", alt.Tooltip("value:Q", format=".1f")],
        )
        .properties(height=height)
    )


def episode(
    curve: Sequence[Place], item: int, last: int, *, baseline: float | None
) -> tuple[Any, Any]:
    """Returns two charts of an episode as Altair objects: the score in each grading (`validate`), and the
    delta reward of each grading, which is the reward for the change of the score. The horizontal axis shows
    the position of the turn.

    `curve` has the `Place` (with the score and the reward) of each `validate` line. A vertical line marks the
    turn at position `item`, from 0. `last` is the position of the last turn. `baseline`, a score, is drawn as
    a horizontal line unless it is None.
    """
    data = [
        {
            "item": place.item,
            "turn": place.turn if place.turn is not None else place.item + 1,
            "score": place.score,
            "delta": place.delta,
            "sign": _direction(place.delta or 0.0),
        }
        for place in curve
    ]
    values = alt.Data(values=data)
    pick = alt.selection_point(name="pick", fields=["item"], on="click", empty=False)
    scale = alt.Scale(domain=[-0.6, last + 0.6], nice=False)
    x = alt.X("item:Q", title=None, scale=scale, axis=None)
    tips = ["turn:Q", alt.Tooltip("score:Q", format=".6g"), alt.Tooltip("delta:Q", format="+.4g")]
    scored = alt.Chart(values).transform_filter("isValid(datum.score)")
    width = {"minExtent": 52, "maxExtent": 52, "format": _NUMBER}  # aligns the two charts
    y = alt.Y(
        "score:Q", title="score", scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=4, **width)
    )
    line = scored.mark_line(interpolate="step-after", strokeWidth=2).encode(x=x, y=y)
    dots = (
        scored.mark_circle(size=75, opacity=1, cursor="pointer")
        .encode(x=x, y=y, tooltip=tips, color=_sign())
        .add_params(pick)
    )
    here = alt.Chart(alt.Data(values=[{"item": item}])).mark_rule(
        strokeDash=[3, 3], color="#8b94a5"
    )
    layers = [here.encode(x=x), line, dots]
    if baseline is not None:
        base = alt.Chart(alt.Data(values=[{"y": baseline}])).mark_rule(color="#8b94a5", opacity=0.6)
        layers.insert(0, base.encode(y=alt.Y("y:Q")))
    upper = alt.layer(*layers).properties(height=130)
    bars = (
        alt.Chart(values)
        .mark_bar(size=8, cornerRadius=2)
        .encode(
            x=x,
            y=alt.Y("delta:Q", title="Δ", axis=alt.Axis(tickCount=2, **width)),
            color=_sign(),
            tooltip=tips,
        )
        .properties(height=60)
    )
    return upper, bars


def _direction(delta: float) -> str:
    return "up" if delta > 0 else "down" if delta < 0 else "none"


def _sign() -> Any:
    return alt.Color(
        "sign:N",
        legend=None,
        scale=alt.Scale(domain=["up", "down", "none"], range=["#2fa874", "#d9534a", "#8b94a5"]),
    )


def _data(chart: Chart) -> Any:
    rows = []
    for order, (name, points) in enumerate(chart.curves.items()):
        kinds = {EACH: points} | ({MEAN: chart.strong(name)} if chart.smoothed else {})
        rows += [
            {
                "name": one_line(name, 80),
                "order": order,
                "kind": kind,
                "strong": kind == list(kinds)[-1],
                "step": step,
                "value": value,
            }
            for kind, shown in kinds.items()
            for step, value in shown
        ]
    return alt.Data(values=rows)
