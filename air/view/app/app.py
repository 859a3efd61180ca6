"""The trajectory viewer's Streamlit app, which shows training runs and their recorded episodes. Renders the
bar at the top and the selected page, and keeps them up to date while a run is in progress."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import streamlit as st

from air.errors import AirError
from air.view.app import url_state
from air.view.app.pages import (
    coevolution,
    compare,
    episode,
    episodes,
    groups,
    matrix,
    results,
    run,
    runs,
)
from air.view.index.run_discovery import Run, discover
from air.view.index.run_index import RunIndex
from air.view.render.markup import CSS, text

LIVE_SECONDS = 2
LIVE_FOR = 120
"""When the app opens, live updates are switched on if the run's files have changed within the last `LIVE_FOR`
seconds."""
SHOW = {
    "Runs": runs.show,
    "Run": run.show,
    "Episodes": episodes.show,
    "Episode": episode.show,
    "Groups": groups.show,
    "Results": results.show,
    "Matrix": matrix.show,
    "Co-evolution": coevolution.show,
    "Compare": compare.show,
}


def main(argv: Sequence[str]) -> None:
    """Renders the app's selected page once. Streamlit calls this function again after every action of the
    user.

    Each element of `argv` is the folder of a run, or a folder that contains folders of runs.
    """
    st.set_page_config(page_title="air view", layout="wide")
    look = (path.read_text(encoding="utf-8") for path in (CSS, Path(__file__).with_name("app.css")))
    st.html(f"<style>{''.join(look)}</style>")
    try:
        all_runs = discover([Path(path) for path in argv])
        _show(all_runs)
    except AirError as error:
        st.html(f'<div class="air error">{text(str(error))}</div>')


def _show(all_runs: Sequence[Run]) -> None:
    chosen_run = _bar(all_runs)
    index = url_state.index_of(str(chosen_run.folder))
    _refresh(index)
    if st.session_state.get("live"):
        _watch(index)
    for name, count in index.problems()[:3]:
        st.html(f'<div class="air note">{text(name)}.jsonl: {count} lines could not be read</div>')
    SHOW[url_state.page()](all_runs, chosen_run, index)


def _bar(all_runs: Sequence[Run]) -> Run:
    """Renders the bar at the top, in which the user selects the run and the page, and switches live updates
    on or off. Returns the selected run."""
    names = [run.name for run in all_runs]
    name = url_state.get("run")
    at = names.index(name) if name in names else 0
    if name and name not in names:
        st.html(f'<div class="air error">no run {text(name)} here</div>')
    left, middle, right = st.columns([3, 7, 1.2], vertical_alignment="center")
    st.session_state["run-widget"] = names[
        at
    ]  # the page's address decides, also after the browser's "back"
    left.selectbox(
        "Run",
        names,
        key="run-widget",
        label_visibility="collapsed",
        on_change=lambda: url_state.open_run(st.session_state["run-widget"]),
    )
    with middle.container(horizontal=True, gap="xxsmall"):
        for page in url_state.PAGES:  # buttons: a radio group would take the arrow keys
            st.button(
                page,
                key=f"page-{page}",
                type="primary" if page == url_state.page() else "secondary",
                on_click=url_state.go,
                kwargs={"page": page},
            )
    if "live" not in st.session_state:
        st.session_state["live"] = time.time() - all_runs[at].changed() < LIVE_FOR
    right.toggle("Live", key="live", help="reads what the run adds every two seconds")
    return all_runs[at]


def _refresh(index: RunIndex) -> None:
    """Reads the new lines of the run's files into the run's index. Shows a progress bar if more than 400
    files are new or have changed."""
    place = st.empty()

    def progress(done: int, of: int) -> None:
        if of > 400:
            place.progress(done / of, text=f"Reading {of} new or changed episodes: {done}")

    index.file.refresh(progress)
    place.empty()


@st.fragment(run_every=LIVE_SECONDS)
def _watch(index: RunIndex) -> None:
    """Reads the new lines of the run's files into the run's index, and renders the app again if there are
    any. Streamlit calls this function every `LIVE_SECONDS` seconds while live updates are on."""
    try:
        changed = index.file.refresh()
    except AirError:  # for example, the run's folder is gone: `main` shows the error
        changed = True
    if changed:
        st.rerun()
