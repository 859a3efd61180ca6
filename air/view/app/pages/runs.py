"""The page with a table of all runs, and the reward or loss curves of the most recent ones."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import streamlit as st

from air.view.app import url_state
from air.view.app.pages import widgets
from air.view.index.run_discovery import Run
from air.view.index.run_index import RunIndex
from air.view.render import metric_series, overview
from air.view.render.charts import MEAN, Chart

MOST_CURVES = 8
_WIDEST_NAME = 290
"""The maximum width, in pixels, of the column with the names of runs."""


def show(runs: Sequence[Run], run: Run, index: RunIndex) -> None:
    """Renders the page with the table of all runs, `runs`. `run` and `index` are not used; all pages have the
    same arguments."""
    del run, index

    rows, rewards, losses = [], {}, {}
    for one in runs:
        log = url_state.index_of(str(one.folder))
        log.file.refresh_logs()
        metrics = log.metrics()
        if overview.kind(one, metrics) == "eval":
            log.file.refresh()  # what an evaluation played and scored is only in its episodes
        rows.append(_row(one, log, metrics))
        if points := metric_series.series(metrics, "reward"):
            rewards[one.name] = points
        elif overview.kind(one, metrics) == "sft":
            losses[one.name] = metric_series.series(metrics, "loss/mean")
    columns = {name: [row[name] for row in rows] for name in rows[0]}

    def pick(number: int) -> None:
        url_state.open_run(runs[number].name)
        url_state.go(page="Run")

    widgets.heading(f"{len(runs)} runs")
    longest = max(len(one.name) for one in runs)
    names = st.column_config.TextColumn(width=min(_WIDEST_NAME, 6 * longest + 24))
    widgets.grid(columns, "runs-grid", pick, config={"run": names, **_CONFIG})
    for title, label, curves in (("reward", "reward", rewards), ("loss", "nats a token", losses)):
        latest = dict(list(curves.items())[:MOST_CURVES])
        title += f", the latest {MOST_CURVES}" if len(curves) > len(latest) else ""
        if latest:
            widgets.chart(Chart(title, latest, y=label), height=320)


def _row(run: Run, index: RunIndex, metrics: Sequence[dict[str, Any]]) -> dict[str, Any]:
    kind = overview.kind(run, metrics)
    name = "loss/mean" if kind == "sft" else "reward"
    first, last = metric_series.quarters(metrics, name)
    curve = Chart(name, {name: metric_series.series(metrics, name)})
    tasks = {task for row in metrics for task in (row.get("tasks") or {})} or set(index.tasks())
    played = sum(int(row.get("episodes") or 0) for row in metrics) or run.recorded()
    return {
        "run": run.name,
        "kind": kind,
        "model": overview.model(run, metrics, index.models()),
        "tasks": ", ".join(sorted(tasks)) or "–",
        "steps": overview.steps(run, metrics),
        "episodes": played,
        "first ¼": first,
        "last ¼": index.totals()["reward"] if kind == "eval" else last,
        "curve": [value for _, value in curve.strong(name)],
        "changed": datetime.fromtimestamp(run.changed()),
    }


_CONFIG = {
    "kind": st.column_config.TextColumn(
        width=60, help="rl: reward by training; sft: loss by training; eval: episodes alone"
    ),
    "curve": st.column_config.LineChartColumn(
        "reward, or loss, by step",
        width="medium",
        help=f"a long curve shows the {MEAN}",
    ),
    "first ¼": st.column_config.NumberColumn(format="%.3f", help="mean reward, or loss"),
    "last ¼": st.column_config.NumberColumn(
        format="%.3f", help="mean reward, or loss; of an evaluation, over all episodes"
    ),
    "changed": st.column_config.DatetimeColumn(format="YYYY-MM-DD HH:mm"),
}
