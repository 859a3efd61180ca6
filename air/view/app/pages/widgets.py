"""What several pages need: all of it takes plain values and shows them as text, never as markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import streamlit as st

from air.view.render import markup


def heading(words: str) -> None:
    """A heading."""
    st.html(f'<div class="air title">{markup.text(words)}</div>')


def note(words: str) -> None:
    """A remark."""
    st.html(f'<div class="air note">{markup.text(words)}</div>')


def grid(
    columns: Mapping[str, Sequence[Any]],
    key: str,
    pick: Callable[[int], None],
    *,
    config: Mapping[str, Any] | None = None,
    height: int | None = None,
) -> None:
    """A table whose rows can be clicked; `pick` is called with a row's number, before all else is shown."""
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
    )
