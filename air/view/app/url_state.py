"""Stores the user's selection, such as run and episode, in the address (URL) of the viewer's page.

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
    """Returns the query parameter `name` of the page's address (URL), or `default` if the address lacks
    it."""
    return str(st.query_params.get(name, default))


def whole(name: str) -> int | None:
    """Returns the query parameter `name` as an integer, or None if the parameter is absent or is not a
    non-negative integer below a billion."""
    text = get(name)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def go(**parts: Any) -> None:
    """Sets query parameters of the page's address; the value None removes a parameter. Call this function
    only from a widget's callback."""
    for name, value in parts.items():
        if value is None:
            st.query_params.pop(name, None)
        else:
            st.query_params[name] = str(value)


def open_run(name: str) -> None:
    """Selects the run `name`, and removes the parameters of the previously selected run, such as its episode,
    from the address.

    Call this function only from a widget's callback.
    """
    for other in [each for each in st.query_params if each not in ("page", "other")]:
        st.query_params.pop(other, None)
    go(run=name)


def page() -> str:
    """Returns the name of the viewer's page in the address (URL), or `Run` if the address has no valid
    page."""
    name = get("page", "Run")
    return name if name in PAGES else "Run"


@st.cache_resource(show_spinner=False)
def index_of(folder: str) -> RunIndex:
    """Opens the index of the run in `folder`: the SQLite file with `Facts` about its episodes. All browser
    sessions get the same object."""
    return RunIndex(Path(folder))
