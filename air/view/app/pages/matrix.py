"""The page of a matrix. `air matrix` trains a model on each of several lists of tasks, and evaluates it on
each of several tasks. The page shows the results as a heat map: one row for each list of training tasks, and
one column for each evaluated task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import streamlit as st

from air.train.matrix import files
from air.view.app.pages import widgets
from air.view.index.run_discovery import Run, matrices
from air.view.index.run_index import RunIndex
from air.view.render import matrix


def show(runs: Sequence[Run], run: Run, index: RunIndex) -> None:
    """Renders the page of a matrix: results of `air matrix`, which trains a model on each of several lists of
    tasks, and evaluates it on each of several tasks. The user selects one of the matrices to which some of
    `runs` belong. `run` and `index` are not used; all pages have the same arguments."""
    del run, index
    found = matrices(runs)
    if not found:
        widgets.note("No run here belongs to a matrix; `air matrix` makes one.")
        return
    chosen = st.selectbox("Matrix", list(found), key="matrix-folder")
    results = found[chosen]
    with st.container(
        horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"
    ):
        widgets.heading(str(results["name"]))
        csv = Path(chosen) / files.CSV_FILE
        if csv.is_file():
            text = csv.read_text(encoding="utf-8")
            st.download_button(
                "CSV", text, csv.name, "text/csv", on_click="ignore", type="tertiary"
            )
    widgets.note(matrix.MEANING)
    st.html(f'<div class="air">{matrix.as_html(results)}</div>')
    widgets.note(f"The episodes of a cell: air view {Path(chosen) / files.CELLS}/ROW-seedN")
