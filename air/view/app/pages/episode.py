"""The page of one episode: its main facts, its score curve, and the turns around the selected turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from air.trajectories.outcome import FORGEABLE
from air.view.app import plots, url_state
from air.view.app.pages import turn_tokens, widgets
from air.view.index.facts import number
from air.view.index.items import items
from air.view.index.run_discovery import Run
from air.view.index.run_index import Episode, RunIndex
from air.view.render import markup, metric_series
from air.view.render.markup import chip, figure, seconds, text

AHEAD = 15
"""The number of turns that the page shows after the selected turn."""


def show(runs: Sequence[Run], run: Run, index: RunIndex) -> None:
    """Renders the page of one episode. The page's address (URL) names it; without a name, it is the newest
    episode of the selected run. `runs` and `run` are not used; all pages have the same arguments."""
    del runs, run
    name = url_state.get("episode")
    episode = index.episode(name) if name else next(iter(index.episodes(limit=1)), None)
    if episode is None:
        widgets.note("No such episode here: open one from the table of episodes.")
        return
    count = index.items(episode)
    item = min(url_state.whole("item") or 0, max(0, count - 1))
    head = {line["type"]: line for line in index.load(episode, index.head(episode))}
    _facts(episode, head.get("start", {}))
    if episode.facts.error:
        st.html(f'<div class="air error">{text(episode.facts.error)}</div>')
    left, right = st.columns([3, 2])
    with left:
        _curve(index, episode, item, count)
    with right:
        facts = episode.facts
        st.html(
            markup.split({name: getattr(facts, f"seconds_{name}") for name in metric_series.TIMES})
        )
        st.html(_terms(head.get("end", {})))
        st.html(markup.opening(head.get("start", {})))
    if count:
        _jumps(index, episode, item, count)
        _turns(index, episode, head.get("start", {}), item, count)


def _facts(episode: Episode, start: Mapping[str, Any]) -> None:
    facts = episode.facts
    kind = {"well": "green", "failed": "red"}.get(facts.how, "blue")
    ending = facts.why or facts.how if facts.how == "well" else facts.how
    chips = [chip(ending, kind)]
    chips += [chip(str(start[key])) for key in ("isolation", "format") if start.get(key)]
    chips += [chip(f"trust: {start['trust']}", "red")] if start.get("trust") in FORGEABLE else []
    chips += [chip(f"seed {start['seed']}")] if "seed" in start else []
    if episode.step is not None:
        chips.append(chip(f"step {episode.step} · group {episode.group}"))
    model = str(facts.model or "").rsplit("/", 1)[-1]
    st.html(
        f'<div class="air facts"><span class="title">{markup.line(facts.task or "?", 80)}</span>'
        f"{''.join(chips)}"
        f'<span class="note">{markup.line(model, 80)} · {text(episode.name)}</span></div>'
    )
    better = "lower is better" if facts.direction == "lower" else "higher is better"
    st.html(
        markup.tiles(
            [
                ("reward", figure(facts.reward, "+z.4f"), "sum of its terms"),
                ("advantage", figure(episode.advantage, "+z.4f"), "within its group"),
                (facts.metric or "score", figure(facts.score), "last validate"),
                ("best", figure(facts.best), better),
                ("test", figure(facts.test), f"baseline {figure(facts.baseline)}"),
                (
                    "turns",
                    str(facts.turns),
                    f"{facts.validates} validate{'' if facts.validates == 1 else 's'}",
                ),
                ("errors", str(facts.errors), "turns and validates"),
                ("time", seconds(facts.seconds), "first line to last"),
            ]
        )
    )


def _terms(end: Mapping[str, Any]) -> str:
    terms = end.get("terms")
    if not isinstance(terms, dict) or not any(terms.values()):
        return '<div class="air note">no terms of a reward</div>'
    pairs = ((name, value) for name, value in terms.items() if value)
    chips = (chip(f"{name} {figure(number(value), '+z.4f')}") for name, value in pairs)
    return f'<div class="air facts"><span class="note">reward made of</span>{"".join(chips)}</div>'


def _curve(index: RunIndex, episode: Episode, item: int, count: int) -> None:
    curve = index.curve(episode)
    if not curve:
        widgets.note("nothing was validated")
        return
    facts, key = episode.facts, f"curve-{episode.name}"

    def picked() -> None:
        points = st.session_state[key]["selection"].get("pick") or []
        if points and "item" in points[0]:
            url_state.go(item=int(points[0]["item"]))

    scores, deltas = plots.episode(curve, item, count - 1, baseline=facts.baseline)
    with st.container(gap=None):
        st.altair_chart(scores, key=key, on_select=picked, selection_mode="pick")
        st.altair_chart(deltas)


def _jumps(index: RunIndex, episode: Episode, item: int, count: int) -> None:
    """Renders the buttons that lead to the previous or next turn, grading (`validate`) or error. `item` is
    the position of the selected turn (from 0), and `count` the number of turns."""
    validate = index.jump(episode, item, "validate")
    error = index.jump(episode, item, "error")
    targets = (
        ("‹ Turn", item - 1 if item > 0 else None, "Left"),
        ("Turn ›", item + 1 if item + 1 < count else None, "Right"),
        ("‹ Validate", index.jump(episode, item, "validate", back=True), "Shift+V"),
        ("Validate ›", validate, "V"),
        ("‹ Error", index.jump(episode, item, "error", back=True), "Shift+E"),
        ("Error ›", error, "E"),
    )
    with st.container(horizontal=True, vertical_alignment="center", gap="xsmall"):
        for label, target, key in targets:
            st.button(
                label,
                key=f"jump-{label}",
                disabled=target is None,
                on_click=url_state.go,
                kwargs={"item": target},
                shortcut=key,
            )
        widgets.note(f"turn {item + 1} of {count}")


def _turns(
    index: RunIndex, episode: Episode, start: Mapping[str, Any], item: int, count: int
) -> None:
    first = max(0, item - 1)
    places = index.places(episode, first, item - first + AHEAD + 1)
    with st.container(gap="xxsmall"):
        for one in items(places, index.load(episode, places)):
            here = one.number == item
            st.html(markup.item(one, is_open=here, here=here))
            if here:
                turn_tokens.show(index, episode, start, one)
    if item + AHEAD + 1 < count:
        widgets.note(f"{count - item - AHEAD - 1} turns follow")
