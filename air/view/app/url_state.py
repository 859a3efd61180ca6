"""The app's navigation state, and the open indices of runs.

The state is kept in the address (URL) of the page, so that a person can reload it or send it to others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import streamlit as st

from air.view.index.run_index import RunIndex

PAGES = ("Runs", "Run", "Episodes", "Episode", "Groups", "Compare")
PAGE_WIDGET = "page-widget"


def get(name: str, default: str = "") -> str:
    """Returns a query parameter of the address, or `default` if it is absent."""
    return str(st.query_params.get(name, default))


def whole(name: str) -> int | None:
    """Returns a query parameter as an integer, or None if it is not a non-negative integer."""
    text = get(name)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def go(**parts: Any) -> None:
    """Sets query parameters of the address; None removes one. Call this only from a widget's callback."""
    for name, value in parts.items():
        if value is None:
            st.query_params.pop(name, None)
        else:
            st.query_params[name] = str(value)
    if "page" in parts:
        st.session_state[PAGE_WIDGET] = parts["page"]


def page() -> str:
    """Returns the name of the page to show, `Run` unless the address names another."""
    given = get("page", "Run")
    return given if given in PAGES else "Run"


@st.cache_resource(show_spinner=False)
def index_of(folder: str) -> RunIndex:
    """Returns the index of the run in `folder`; all sessions of the server share it."""
    return RunIndex(Path(folder))
