"""The part of an episode's page that shows the tokens of the selected turn, and the commands with which the
user can play on from this turn."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import streamlit as st

from air import paths
from air.view.app.pages import widgets
from air.view.index.items import Item
from air.view.index.run_index import Episode, RunIndex
from air.view.index.turn_tokens import of_turn
from air.view.render import token_markup

FORK = "fork"
"""A key in Streamlit's session state. Its value is the turn for which the page shows the commands `air shell
--from …`, as a pair (name of the episode, position of the turn); None if it shows no commands."""


def show(index: RunIndex, episode: Episode, start: Mapping[str, Any], item: Item) -> None:
    """Renders the tokens of one turn, or the reason why there are none. `item` has the turn's recorded lines,
    and `start` is the first line of the episode's trajectory (its recording)."""
    if item.step is None:
        return
    _fork(index, episode, start, item)
    tokens = of_turn(index.file.folder, episode.facts.episode, episode.step, start, item.step)
    if isinstance(tokens, str):
        widgets.note(tokens)
        return
    st.html(token_markup.turn(tokens, index.curve(episode)))


def _fork(index: RunIndex, episode: Episode, start: Mapping[str, Any], item: Item) -> None:
    """Renders a button that shows or hides the commands `air shell --from …`, with which the user can play
    the episode on from before or after the turn `item`. Renders nothing if air's own harness did not play the
    episode, because `air shell` cannot continue such an episode."""
    if start.get("origin", "air") != "air" or start.get("harness", "air") != "air":
        return  # `air shell` continues only episodes of air's own harness
    here = (episode.name, item.number)

    def clicked() -> None:
        st.session_state[FORK] = None if st.session_state.get(FORK) == here else here

    st.button(
        "Live fork", key="fork-button", on_click=clicked, help="how to play on from this turn"
    )
    if st.session_state.get(FORK) == here:
        path = index.file.trajectories / f"{episode.name}.jsonl"
        line = f"{paths.command()} shell --from {shlex.quote(str(path))} --turn"
        st.code(
            f"{line} {item.number}  # before this turn\n{line} {item.number + 1}  # after it",
            language="bash",
        )
