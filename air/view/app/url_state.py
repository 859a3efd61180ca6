"""Stores the app's navigation state in the address (URL) of its page, and shares the open indices of runs.

Because the state is in the address, a person can reload the page or send the address to others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import streamlit as st

from air.view.index.run_index import RunIndex

PAGES = ("Runs", "Run", "Episodes", "Episode", "Groups", "Compare")
PAGE_WIDGET = "page-widget"


def get(name: str, default: str = "") -> str:
    """Returns a query parameter of the page's address (URL), or `default` if the parameter is absent."""
    return str(st.query_params.get(name, default))


def whole(name: str) -> int | None:
    """Returns a query parameter of the address as an integer, or None if it is no non-negative integer."""
    text = get(name)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def go(**parts: Any) -> None:
    """Sets query parameters of the page's address (URL); the value None removes a parameter.

    Call this only from the callback of a Streamlit widget.
    """
    for name, value in parts.items():
        if value is None:
            st.query_params.pop(name, None)
        else:
            st.query_params[name] = str(value)
    if "page" in parts:
        st.session_state[PAGE_WIDGET] = parts["page"]


def page() -> str:
    """Returns the name of the page to show: the one that the address names, otherwise `Run`."""
    given = get("page", "Run")
    return given if given in PAGES else "Run"


@st.cache_resource(show_spinner=False)
def index_of(folder: str) -> RunIndex:
    """Returns the index of the run in `folder`; all browser sessions share this object."""
    return RunIndex(Path(folder))
