"""The page with a table of all runs, and the reward curves of the most recent ones."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import streamlit as st

from air.view.app import plots, url_state
from air.view.app.pages import widgets
from air.view.index.run_discovery import Run, look_up
from air.view.index.run_index import RunIndex
from air.view.render import metric_series

MOST_CURVES = 8


def show(runs: Sequence[Run], run: Run, index: RunIndex) -> None:
    """Renders the page with the table of all runs (`runs`)."""
    del index

    rows, curves = [], {}
    for one in runs:
        log = url_state.index_of(str(one.folder))
        log.file.refresh_logs()
        metrics = log.metrics()
        rows.append(_row(one, metrics))
        if points := metric_series.series(metrics, "reward"):
            curves[one.name] = points
    columns = {name: [row[name] for row in rows] for name in rows[0]}

    def pick(number: int) -> None:
        url_state.go(run=runs[number].name, page="Run", episode=None, item=None, group=None)
        st.session_state["run-widget"] = runs[number].name

    widgets.heading(f"{len(runs)} runs")
    widgets.grid(
        columns,
        "runs-grid",
        pick,
        config={
            "reward": st.column_config.LineChartColumn("reward by step", width="medium"),
            "first ¼": st.column_config.NumberColumn(format="%.3f"),
            "last ¼": st.column_config.NumberColumn(format="%.3f"),
            "changed": st.column_config.DatetimeColumn(format="YYYY-MM-DD HH:mm"),
        },
    )
    if curves:
        latest = dict(list(curves.items())[:MOST_CURVES])
        widgets.heading(
            "reward" + (f", the latest {MOST_CURVES}" if len(curves) > len(latest) else "")
        )
        st.altair_chart(plots.lines(latest, height=320))


def _row(run: Run, metrics: Sequence[dict[str, Any]]) -> dict[str, Any]:
    config = run.config()
    first, last = metric_series.quarters(metrics, "reward")
    tasks = {task for row in metrics for task in (row.get("tasks") or {})}
    return {
        "run": run.name,
        "model": str(look_up(config, "model", "name") or "–"),
        "tasks": ", ".join(sorted(tasks)) or "–",
        "steps": f"{metrics[-1]['step'] if metrics else 0}/{look_up(config, 'max_steps') or '–'}",
        "episodes": sum(int(row.get("episodes") or 0) for row in metrics) or run.recorded(),
        "first ¼": first,
        "last ¼": last,
        "reward": [value for _, value in metric_series.series(metrics, "reward")],
        "changed": datetime.fromtimestamp(run.changed()),
    }
