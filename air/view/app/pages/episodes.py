"""The page with the table of a run's episodes, which the user can filter, sort and page through."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import streamlit as st

from air.view.app import url_state
from air.view.app.pages import episode_filters, widgets
from air.view.index.run_discovery import Run
from air.view.index.run_index import Episode, RunIndex
from air.view.render.clean import one_line

PAGE = 100


def show(runs: Sequence[Run], run: Run, index: RunIndex) -> None:
    """Renders the page with the table of episodes of the selected run. `runs` and `run` are not used; all
    pages have the same arguments."""
    del runs, run
    conditions, sort = episode_filters.show(index)
    count = index.count(conditions)
    first = min(url_state.whole("first") or 0, max(0, (count - 1) // PAGE * PAGE))
    episodes = index.episodes(conditions, sort=sort, offset=first, limit=PAGE)
    _pages(count, first)
    if episodes:
        widgets.grid(
            _columns(episodes),
            "episodes-grid",
            lambda row: url_state.go(page="Episode", episode=episodes[row].name, item=None),
            config=_CONFIG,
        )


def _pages(count: int, first: int) -> None:
    left, back, forth = st.columns([10, 1, 1], vertical_alignment="center")
    with left:
        last = min(count, first + PAGE)
        message = f"{first + 1}–{last} of {count} episodes" if count else "no such episode"
        widgets.note(f"{message} · click one to open it")
    if count > PAGE:
        back.button(
            "‹ Page", disabled=first == 0, on_click=url_state.go, kwargs={"first": first - PAGE}
        )
        forth.button(
            "Page ›",
            disabled=first + PAGE >= count,
            on_click=url_state.go,
            kwargs={"first": first + PAGE},
        )


def _columns(episodes: Sequence[Episode]) -> dict[str, list[Any]]:
    facts = [one.facts for one in episodes]
    columns: dict[str, list[Any]] = {
        "task": [f.task for f in facts],
        "reward": [f.reward for f in facts],
        "scores": [[s for s in json.loads(f.scores) if s is not None] for f in facts],
        "score": [f.score for f in facts],
        "best": [f.best for f in facts],
        "test": [f.test for f in facts],
        "turns": [f.turns for f in facts],
        "validates": [f.validates for f in facts],
        "errors": [f.errors for f in facts],
        "end": [one_line(f.ending, 30 if f.how == "well" else 120) for f in facts],
        "seconds": [f.seconds for f in facts],
        "started": [
            None if f.started is None else datetime.fromtimestamp(f.started) for f in facts
        ],
        "step": [one.step for one in episodes],
        "advantage": [one.advantage for one in episodes],
        "episode": [one.name for one in episodes],
    }
    return {
        name: values
        for name, values in columns.items()
        if name not in ("step", "advantage") or any(value is not None for value in values)
    }


_CONFIG = {
    "task": st.column_config.TextColumn(width="medium"),
    "reward": st.column_config.NumberColumn(format="%+.3f", width=70),
    "scores": st.column_config.LineChartColumn("scores", width="small"),
    "score": st.column_config.NumberColumn(format="%.4g", width=70),
    "best": st.column_config.NumberColumn(format="%.4g", width=70),
    "test": st.column_config.NumberColumn(format="%.4g", width=70),
    "turns": st.column_config.NumberColumn(width=56),
    "validates": st.column_config.NumberColumn(width=70),
    "errors": st.column_config.NumberColumn(width=56),
    "end": st.column_config.TextColumn(width="small"),
    "seconds": st.column_config.NumberColumn(format="%.1f", width=70),
    "started": st.column_config.DatetimeColumn(format="MM-DD HH:mm:ss", width="small"),
    "step": st.column_config.NumberColumn(width=56),
    "advantage": st.column_config.NumberColumn(format="%+.3f", width=80),
    "episode": st.column_config.TextColumn(width="small"),
}
