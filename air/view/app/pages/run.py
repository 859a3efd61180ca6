"""The page of one training run: main numbers, curves, tasks, and the time that its episodes spent on each
activity."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import streamlit as st

from air.view.app import plots
from air.view.app.pages import episode_filters, widgets
from air.view.index.run_discovery import Run
from air.view.index.run_index import RunIndex
from air.view.render import charts, markup, metric_series, overview


def show(runs: Sequence[Run], run: Run, index: RunIndex) -> None:
    """Renders the page of the selected run, `run`, from its index. `runs` is not used; all pages have the
    same arguments."""
    del runs
    metrics, totals = index.metrics(), index.totals()
    st.html(markup.tiles(overview.tiles(run, metrics, totals, index.models())))
    tasks = index.tasks()

    def pick(step: int, name: str) -> None:
        episode_filters.open_step(step, name if name in tasks else None)

    to_episodes = pick if index.has_steps() else None
    if to_episodes is not None:
        widgets.note("A click on a point opens the episodes of its training step.")
    main = charts.main(metrics)
    if metrics and not main:
        widgets.note("No step has a reward.")
    for column, chart in zip(st.columns(max(1, len(main))), main, strict=False):
        with column:
            widgets.chart(chart, pick=to_episodes)
    if totals["episodes"]:
        _episodes(index, metrics)
    elif not metrics:
        widgets.note("Nothing is recorded yet.")
    _small(metrics, to_episodes)


def _episodes(index: RunIndex, metrics: Sequence[Mapping[str, Any]]) -> None:
    left, right = st.columns([3, 2])
    with left:
        widgets.heading("tasks")
        st.html(markup.tasks(index.by_task()))
    with right:
        widgets.heading("where the episodes' time went")
        st.html(markup.split(metric_series.times(index.totals())))
        if any(value for row in metrics for value in metric_series.times(row).values()):
            st.altair_chart(plots.time_split(metrics))


def _small(metrics: Sequence[Mapping[str, Any]], pick: Callable[[int, str], None] | None) -> None:
    small = charts.small(metrics)
    if any(chart.smoothed for chart in small):
        widgets.note(f"thin lines: {charts.EACH}; thick lines: {charts.MEAN}")
    for start in range(0, len(small), 3):
        for column, chart in zip(st.columns(3), small[start : start + 3], strict=False):
            with column:
                widgets.chart(chart, height=150, pick=pick)
