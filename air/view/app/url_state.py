"""Where a person is in the app, kept in the address so that it can be sent and reloaded,
and the open indices of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import streamlit as st

from air.view.index.run_index import RunIndex

PAGES = ("Runs", "Run", "Episodes", "Episode", "Groups", "Compare")
PAGE_WIDGET = "page-widget"


def get(name: str, default: str = "") -> str:
    """A part of the address."""
    return str(st.query_params.get(name, default))


def whole(name: str) -> int | None:
    """A part of the address that is a whole number; None where it is none."""
    text = get(name)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def go(**parts: Any) -> None:
    """Goes somewhere: to be called from a widget's callback. What is None leaves the address."""
    for name, value in parts.items():
        if value is None:
            st.query_params.pop(name, None)
        else:
            st.query_params[name] = str(value)
    if "page" in parts:
        st.session_state[PAGE_WIDGET] = parts["page"]


def page() -> str:
    """The page that is shown."""
    given = get("page", "Run")
    return given if given in PAGES else "Run"


@st.cache_resource(show_spinner=False)
def index_of(folder: str) -> RunIndex:
    """The index of a run, one for the whole server."""
    return RunIndex(Path(folder))
