"""Stores what the user has selected, such as run and episode, in the address (URL) of the viewer's page.

The user can then reload the page or send its address to others. The module also opens the indices of runs.
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
    """Returns the query parameter `name` of the page's address (URL)."""
    return str(st.query_params.get(name, default))


def whole(name: str) -> int | None:
    """Returns a query parameter as a non-negative integer, or None if it is absent or something else."""
    text = get(name)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def go(**parts: Any) -> None:
    """Sets query parameters of the page's address; None removes one. Call only from a widget's callback."""
    for name, value in parts.items():
        if value is None:
            st.query_params.pop(name, None)
        else:
            st.query_params[name] = str(value)


def open_run(name: str) -> None:
    """Selects another run, and removes from the address what belongs to the present run, such as its episode.

    Call only from a widget's callback.
    """
    for other in [each for each in st.query_params if each not in ("page", "other")]:
        st.query_params.pop(other, None)
    go(run=name)


def page() -> str:
    """Returns the name of the viewer's page that the address (URL) selects, or `Run` if it selects none."""
    name = get("page", "Run")
    return name if name in PAGES else "Run"


@st.cache_resource(show_spinner=False)
def index_of(folder: str) -> RunIndex:
    """Opens the index of the run in `folder`. All browser sessions share the object."""
    return RunIndex(Path(folder))
