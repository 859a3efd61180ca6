"""The page of a co-evolution (`air coevolve` trains a model that proposes questions and a model that answers
them, in rounds). For each round, it shows the agreement of answers, the novelty of questions, the rewards,
and the accuracy on held-out questions."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from air.view.app.pages import widgets
from air.view.index.run_discovery import Run, coevolutions
from air.view.index.run_index import RunIndex
from air.view.render import coevolution


def show(runs: Sequence[Run], run: Run, index: RunIndex) -> None:
    """Renders the page of a co-evolution: a training by `air coevolve` of a model that proposes questions and
    a model that answers them, in rounds. The user selects one of the co-evolutions to which some of `runs`
    belong. `run` and `index` are not used; all pages have the same arguments."""
    del run, index
    found = coevolutions(runs)
    if not found:
        widgets.note("No run here belongs to a co-evolution; `air coevolve` makes one.")
        return
    chosen = st.selectbox("Co-evolution", list(found), key="coevolution-folder")
    report = found[chosen]
    widgets.heading(str(report["name"]))
    widgets.note(coevolution.MEANING)
    st.html(f'<div class="air">{coevolution.as_html(report)}</div>')
    charts = [one for one in coevolution.charts(report) if any(one.curves.values())]
    for column, chart in zip(st.columns(max(1, len(charts))), charts, strict=False):
        with column:
            widgets.chart(chart)
    widgets.note(
        "The trainings and the held-out episodes of each round are runs: choose one above."
    )
