"""The page of one run: main numbers, curves, tasks, and how the episodes' time was spent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from air.view.app import plots
from air.view.app.pages import widgets
from air.view.index.run_discovery import Run, look_up
from air.view.index.run_index import RunIndex
from air.view.render import markup, metric_series
from air.view.render.markup import figure, seconds

SMALL = (
    "train/entropy",
    "train/mismatch_kl",
    "train/grad_norm",
    "train/loss",
    "well_formed",
    "turns",
)


def show(runs: Sequence[Run], run: Run, index: RunIndex) -> None:
    """Renders the page of the chosen run, `run`."""
    del runs
    metrics, totals, config = index.metrics(), index.totals(), run.config()
    st.html(markup.tiles(_tiles(metrics, totals, config)))
    if metrics:
        _curves(metrics)
    elif not totals["episodes"]:
        widgets.note("Nothing is recorded yet.")
    left, right = st.columns([3, 2])
    with left:
        widgets.heading("tasks")
        st.html(markup.tasks(index.by_task()))
    with right:
        widgets.heading("where the episodes' time went")
        st.html(markup.split(metric_series.times(totals)))
        if metrics:
            st.altair_chart(plots.time_split(metrics))
    if metrics:
        _small(metrics)


def _tiles(
    metrics: Sequence[Mapping[str, Any]], totals: Mapping[str, Any], config: Mapping[str, Any]
) -> list[tuple[str, str, str]]:
    first, last = metric_series.quarters(metrics, "reward")
    steps = metrics[-1]["step"] if metrics else 0
    of = look_up(config, "max_steps")
    lost = (totals["failed"] or 0) + (totals["unfinished"] or 0)
    speed = metrics[-1].get("tokens_per_second") if metrics else None
    wall = (totals["ended"] or 0) - (totals["started"] or 0)
    algo = look_up(config, "orchestrator", "algo", "type")
    return [
        ("model", str(look_up(config, "model", "name") or "–").rsplit("/", 1)[-1], str(algo or "")),
        (
            "steps",
            f"{steps}/{of}" if of else str(steps),
            f"{seconds(wall)} in all" if wall > 0 else "",
        ),
        (
            "episodes",
            str(totals["episodes"]),
            f"{lost} failed or unfinished" if lost else "all ended well",
        ),
        ("reward, last ¼", figure(last, "+.3f"), f"first ¼ {figure(first, '+.3f')}"),
        ("reward, all", figure(totals["reward"], "+.3f"), "mean over episodes"),
        ("turns", figure((totals["turns"] or 0) / max(1, totals["episodes"]), ".1f"), "an episode"),
        ("tokens/s", figure(speed, ".0f"), "last step"),
    ]


def _curves(metrics: Sequence[Mapping[str, Any]]) -> None:
    left, right = st.columns(2)
    with left:
        widgets.heading("reward")
        curves = {"reward": metric_series.series(metrics, "reward")}
        st.altair_chart(plots.lines(curves))
    with right:
        widgets.heading("reward by task")
        st.altair_chart(plots.lines(metric_series.task_series(metrics)))


def _small(metrics: Sequence[Mapping[str, Any]]) -> None:
    terms = [name for name in metric_series.names(metrics) if name.startswith("reward/")]
    nonzero = [
        name for name in terms if any(value for _, value in metric_series.series(metrics, name))
    ]
    extra = nonzero if len(nonzero) > 1 else []  # one term alone is the reward itself
    metric_names = [name for name in (*extra, *SMALL) if metric_series.series(metrics, name)]
    for start in range(0, len(metric_names), 3):
        for column, name in zip(st.columns(3), metric_names[start : start + 3], strict=False):
            with column:
                widgets.heading(name)
                points = {name: metric_series.series(metrics, name)}
                st.altair_chart(plots.lines(points, height=110))
