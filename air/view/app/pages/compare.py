"""The page that compares two training runs: curves, metrics, tasks, times, and the settings in which the runs
differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from air.view.app import url_state
from air.view.app.pages import widgets
from air.view.index.run_discovery import Run, differences, flat
from air.view.index.run_index import RunIndex
from air.view.render import markup, metric_series
from air.view.render.charts import Chart
from air.view.render.markup import figure


def show(runs: Sequence[Run], run: Run, index: RunIndex) -> None:
    """Renders the page that compares the run `run` with another one, which the user selects from `runs`:
    curves, metrics, tasks, times and differing settings. `index` is the index of the episodes of `run`."""
    others = [one for one in runs if one.name != run.name]
    if not others:
        widgets.note("There is only one run here: name two, or the folder that holds them.")
        return
    first, right_column = st.columns(2)
    with first:
        other = _chosen(others)

    second = url_state.index_of(str(other.folder))
    second.file.refresh()
    pair = {run.name: index, other.name: second}
    metrics = {name: one.metrics() for name, one in pair.items()}
    both = metric_series.names([row for rows in metrics.values() for row in rows])
    if both:
        metric = right_column.selectbox(
            "Metric", both, index=both.index("reward") if "reward" in both else 0
        )
        curves = {name: metric_series.series(rows, metric) for name, rows in metrics.items()}
        widgets.chart(Chart(metric, curves), height=280)
    left, right = st.columns(2)
    with left:
        widgets.heading("tasks")
        st.html(_tasks(pair))
        widgets.heading("where the episodes' time went")
        for name, one in pair.items():
            widgets.note(name)
            st.html(markup.split(metric_series.times(one.totals())))
    with right:
        widgets.heading("settings that differ")
        st.html(_differences(run, other))
        if both:
            widgets.heading("first and last quarter of the steps")
            st.html(_quarters(metrics, both))


def _chosen(others: Sequence[Run]) -> Run:
    names = [one.name for one in others]
    name = url_state.get("other")
    chosen = st.selectbox(
        "Compare with",
        names,
        index=names.index(name) if name in names else 0,
        key="other-widget",
        on_change=lambda: url_state.go(other=st.session_state["other-widget"]),
    )
    return others[names.index(chosen)]


def _tasks(pair: Mapping[str, RunIndex]) -> str:
    results = {name: {row["task"]: row for row in one.by_task()} for name, one in pair.items()}
    rows: list[list[object]] = []
    for task in sorted({task for tasks in results.values() for task in tasks}):
        for name, tasks in results.items():
            row = tasks.get(task, {})
            figures_ = (
                figure(row.get("reward"), "+z.3f"),
                row.get("score"),
                row.get("best"),
                row.get("test"),
            )
            rows.append([task, name, row.get("episodes", 0), *figures_])
    return markup.table(
        ("task", "run", "episodes", "reward", "mean last", "best", "mean test"), rows, left=2
    )


def _differences(one: Run, other: Run) -> str:
    for run in (one, other):
        if not run.config():
            return f'<div class="air note">{markup.text(run.name)}: no settings are recorded</div>'
    first, second = flat(one.config()), flat(other.config())
    keys, paths = differences(first, second)
    rows = [(key, first.get(key, "–"), second.get(key, "–")) for key in keys]
    names = ("setting", one.name, other.name)
    table = markup.table(names, rows, left=3) if keys else '<div class="air note">none</div>'
    if not paths:
        return table
    also = f"differ only in the folder: {', '.join(paths)}"
    return f'{table}<div class="air note">{markup.text(also)}</div>'


def _quarters(metrics: Mapping[str, Sequence[Mapping[str, Any]]], names: Sequence[str]) -> str:
    rows = []
    for name in names:
        cells = [metric_series.quarters(rows_, name) for rows_ in metrics.values()]
        rows.append((name, *(f"{figure(a)} → {figure(b)}" for a, b in cells)))
    return markup.table(("metric", *metrics), rows)
