"""Widgets that several pages of the app use. They show values as plain text, never as Markdown, because
recorded text may be hostile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import streamlit as st

from air.view.app import plots
from air.view.render import charts, markup
from air.view.render.charts import Chart


def heading(words: str) -> None:
    """Renders `words` as a heading."""
    st.html(f'<div class="air title">{markup.text(words)}</div>')


def note(words: str) -> None:
    """Renders `words` as a remark in small print."""
    st.html(f'<div class="air note">{markup.text(words)}</div>')


def chart(
    content: Chart,
    *,
    height: int = plots.HEIGHT,
    pick: Callable[[int, str], None] | None = None,
) -> None:
    """Renders a line chart with its title, a legend if it has several curves, and a button with which the
    user saves the chart's numbers as CSV.

    If the user clicks a point, calls `pick` (unless it is None) with the point's training step and the name
    of its curve. `height` is in pixels.
    """
    with st.container(
        horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"
    ):
        heading(content.title)
        st.download_button(
            "CSV",
            charts.as_csv(content),
            f"{charts.file_name(content)}.csv",
            "text/csv",
            key=f"csv-{content.title}",
            on_click="ignore",
            type="tertiary",
        )
    if len(content.curves) > 1:
        st.html(markup.legend(content))
    if pick is None:
        st.altair_chart(plots.lines(content, height=height))
        return
    key = f"chart-{content.title}"

    def picked() -> None:
        points = st.session_state[key]["selection"].get("pick") or []
        if points and "step" in points[0]:
            pick(int(points[0]["step"]), str(points[0].get("name")))

    plot = plots.lines(content, height=height, clickable=True)
    st.altair_chart(plot, key=key, on_select=picked, selection_mode="pick")


def grid(
    columns: Mapping[str, Sequence[Any]],
    key: str,
    pick: Callable[[int], None],
    *,
    config: Mapping[str, Any] | None = None,
    height: int | None = None,
) -> None:
    """Renders a table. If the user clicks a row, calls `pick` with the row's position, from 0.

    `columns` maps each column's name to the column's values; `config` maps names of columns to Streamlit's
    settings for them. `key` is the table's key in Streamlit's session state. `height` is in pixels; None: it
    fits the number of rows, up to a limit.
    """
    count = len(next(iter(columns.values()), ()))

    def on_select() -> None:
        cells = st.session_state[key]["selection"]["cells"]
        if cells and cells[0][0] < count:
            pick(cells[0][0])

    st.dataframe(
        {name: list(values) for name, values in columns.items()},
        key=key,
        on_select=on_select,
        selection_mode="single-cell",
        hide_index=True,
        column_config=dict(config or {}),
        height=height or min(640, 38 + 30 * max(1, count)),
        row_height=30,
        placeholder="–",
    )
