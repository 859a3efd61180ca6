"""Stores the user's selection, such as the run and the episode, in the address (URL) of the viewer's page.

So the user can reload the page, or send its address to others, without losing the selection. The module also
opens the indices of runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import streamlit as st

from air.view.index.run_index import RunIndex

PAGES = (
    "Runs",
    "Run",
    "Episodes",
    "Episode",
    "Groups",
    "Results",
    "Matrix",
    "Co-evolution",
    "Compare",
)


def get(name: str, default: str = "") -> str:
    """Returns the query parameter `name` in the address (URL) of the page, or `default` if it is absent."""
    return str(st.query_params.get(name, default))


def whole(name: str) -> int | None:
    """Returns the query parameter `name` as an integer. Returns None if it is absent, or is not an integer
    from 0 to 999999999."""
    text = get(name)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def go(**parts: Any) -> None:
    """Sets query parameters in the address (URL) of the page, by name; the value None removes a parameter.
    Call this function only from a widget's callback, because Streamlit permits the change only there."""
    for name, value in parts.items():
        if value is None:
            st.query_params.pop(name, None)
        else:
            st.query_params[name] = str(value)


def open_run(name: str) -> None:
    """Selects the run `name` in the page's address (URL), and removes the parameters of the previously
    selected run, such as its episode.

    Call this function only from a widget's callback, because Streamlit permits the change only there.
    """
    for other in [each for each in st.query_params if each not in ("page", "other")]:
        st.query_params.pop(other, None)
    go(run=name)


def page() -> str:
    """Returns the name of the page that the address (URL) selects; `Run` if it selects no valid page."""
    name = get("page", "Run")
    return name if name in PAGES else "Run"


@st.cache_resource(show_spinner=False)
def index_of(folder: str) -> RunIndex:
    """Opens the index of the run in `folder`: a SQLite database about the run's recorded episodes. All
    browser sessions get the same object."""
    return RunIndex(Path(folder))
