"""The page with a table of mean scores by model and task, over several runs, such as evaluations."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from air.view.app import url_state
from air.view.app.pages import widgets
from air.view.index.run_discovery import Run
from air.view.index.run_index import RunIndex
from air.view.render import markup, results

MOST_RUNS = 8
"""The maximum number of runs that are in the table when the page opens: the selected run, and the most recent
others."""


def show(runs: Sequence[Run], run: Run, index: RunIndex) -> None:
    """Renders the page with the results of several runs, which the user selects from `runs`; `run` is
    selected at first. `index` is not used; all pages have the same arguments."""
    del index
    played = [one.name for one in runs if one.recorded()]
    if not played:
        widgets.note("No run here has recorded episodes.")
        return
    left, middle, right = st.columns([6, 2, 2], vertical_alignment="bottom")
    first = [name for name in played if name == run.name]
    others = [name for name in played if name != run.name]
    names = left.multiselect("Runs", played, [*first, *others][:MOST_RUNS], key="results-runs")
    value = middle.selectbox("Score", list(results.SCORES), key="results-score")
    last = right.toggle(
        "Last ¼ of training",
        value=True,
        key="results-last",
        help="of a run that trains a model, only the episodes of the last quarter of its steps",
    )
    found = {}
    for one in runs:
        if one.name in names:
            index = url_state.index_of(str(one.folder))
            index.file.refresh()
            found[one.name] = index.scores(results.SCORES[value], last_quarter=last)
    _table(results.results(found), value)


def _table(table: results.Results, value: str) -> None:
    with st.container(
        horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"
    ):
        widgets.heading(f"{value}: mean ± standard error (episodes)")
        csv = results.as_csv(table, value)
        name = f"results-{results.SCORES[value]}.csv"
        st.download_button("CSV", csv, name, "text/csv", on_click="ignore", type="tertiary")
    heads, rows = results.rows(table)
    st.html(markup.table(heads, rows, left=2))
    for task in sorted(table.changed):
        widgets.note(f"{task}: its metric, direction or baseline changed between these episodes")
