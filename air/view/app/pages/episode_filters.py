"""The widgets above the table of episodes with which the user filters and sorts it.

The filters and the sort order are stored only in the page's address (URL). So they stay the same if the user
reloads the page, returns to it, or sends the address to others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import streamlit as st

from air.view.app import url_state
from air.view.app.pages import widgets
from air.view.index.run_index import SORTS, Filter, RunIndex

ALL_TASKS = "all tasks"
ENDS = {"any end": None, "ended well": "well", "failed": "failed", "unfinished": "unfinished"}
DEFAULTS: Mapping[str, Any] = {
    "task": ALL_TASKS,
    "end": next(iter(ENDS)),
    "sort": next(iter(SORTS)),
    "search": "",
    "reward": None,
    "turns": None,
    "step": None,
    "errors": False,
}
"""Maps the name of each filter (its query parameter in the page's address) to the default value. Default
values are not written to the address."""


@dataclass(frozen=True)
class _Value:
    """The value of one filter, as read from the page's address (URL)."""

    value: Any
    """The value that the filter's widget shows. If the address has no valid value, it is the default."""
    problem: str = ""
    """If the address has an invalid value for this filter, this part of the address, as `name=value`;
    otherwise empty."""


def show(index: RunIndex) -> tuple[Filter, str]:
    """Renders the widgets for the filters and the sort order of the table of episodes. Returns what the user
    has selected: the filter, and the name of the sort order (a key of `SORTS`)."""
    tasks = [ALL_TASKS, *index.tasks()]
    wanted = _from_address(tasks)
    for name, each in wanted.items():
        st.session_state[_key(name)] = each.value  # the widgets show what the address says
    if problems := [each.problem for each in wanted.values() if each.problem]:
        widgets.note(f"The address has filters that do not fit this run: {', '.join(problems)}")
    columns = st.columns([2, 1.6, 2, 2.2, 1.2, 1.1, 1.2, 1.1], vertical_alignment="bottom")
    columns[0].selectbox("Task", tasks, **_stored("task"))
    columns[1].selectbox("End", list(ENDS), **_stored("end"))
    columns[2].selectbox("Sort by", list(SORTS), **_stored("sort"))
    columns[3].text_input("Search", placeholder="id, model or error", **_stored("search"))
    columns[4].number_input("Reward from", value=None, format="%.2f", step=0.1, **_stored("reward"))
    columns[5].number_input("Turns from", value=None, min_value=0, step=1, **_stored("turns"))
    columns[6].number_input("Training step", value=None, min_value=0, step=1, **_stored("step"))
    columns[7].toggle("Errors", **_stored("errors"))
    return _filter({name: each.value for name, each in wanted.items()}), wanted["sort"].value


def open_step(step: int, task: str | None) -> None:
    """Opens the page with the table of episodes, and shows only the episodes of the training step `step` and,
    unless `task` is None, of this task.

    Call this function only from a widget's callback, because Streamlit permits the change only there.
    """
    no_filters = dict.fromkeys((*DEFAULTS, "first"))
    url_state.go(**{**no_filters, "page": "Episodes", "step": step, "task": task})


def _from_address(tasks: list[str]) -> dict[str, _Value]:
    """Reads the values of all filters from the page's address (URL), and returns them by the filter's name.
    `tasks` are the valid values of the filter `task`."""
    return {
        "task": _choice("task", tasks),
        "end": _choice("end", list(ENDS)),
        "sort": _choice("sort", list(SORTS)),
        "search": _Value(url_state.get("search")),
        "reward": _number("reward", float),
        "turns": _number("turns", int),
        "step": _number("step", int),
        "errors": _Value(url_state.get("errors") == "1"),
    }


def _choice(name: str, options: list[str]) -> _Value:
    text = url_state.get(name) or DEFAULTS[name]
    return _Value(text) if text in options else _Value(DEFAULTS[name], f"{name}={text}")


def _number(name: str, kind: Callable[[str], float]) -> _Value:
    text = url_state.get(name)
    if not text:
        return _Value(None)
    try:
        value = kind(text)
    except ValueError:
        value = math.nan
    fits = abs(value) < 2**53 and (
        kind is float or value >= 0
    )  # more does not fit a browser's number
    return _Value(value) if fits else _Value(None, f"{name}={text}")


def _filter(values: Mapping[str, Any]) -> Filter:
    reward, turns = values["reward"], values["turns"]
    return Filter(
        task=None if values["task"] == ALL_TASKS else values["task"],
        how=ENDS[values["end"]],
        errors=values["errors"],
        text=values["search"].strip(),
        reward=None if reward is None else (reward, math.inf),
        turns=None if turns is None else (turns, 2**62),
        step=values["step"],
    )


def _stored(name: str) -> dict[str, Any]:
    """Returns keyword arguments for the Streamlit widget of the filter `name`. With them, the widget writes
    its value to the page's address (URL) whenever the user changes it."""
    return {"key": _key(name), "on_change": _store, "args": (name,)}


def _key(name: str) -> str:
    return f"filter-{name}"


def _store(name: str) -> None:
    """Writes the present value of the filter `name` to the page's address (URL), and makes the table start at
    its first page. Streamlit calls this function when the user changes the filter."""
    value = st.session_state[_key(name)]
    wanted = None if value == DEFAULTS[name] else "1" if value is True else value
    url_state.go(**{name: wanted, "first": None})
