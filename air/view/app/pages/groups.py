"""The page of groups. A group is a set of episodes of the same task in one training step, whose rewards are
compared with each other. The page shows a group's episodes side by side, with their rewards and
advantages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from air.view.app import url_state
from air.view.app.pages import widgets
from air.view.index.facts import number
from air.view.index.items import Item, items
from air.view.index.run_discovery import Run
from air.view.index.run_index import Episode, RunIndex
from air.view.render import markup
from air.view.render.clean import differing
from air.view.render.markup import chip, figure, text

PAGE = 200
BESIDE = 4
TURNS = 12
"""The number of turns that the page shows of each episode."""


def show(runs: Sequence[Run], run: Run, index: RunIndex) -> None:
    """Renders the page with the groups of the selected run; a group is the episodes of one task in one
    training step, whose rewards are compared with each other. `index` has the run's episodes. `runs` and
    `run` are not used; all pages have the same arguments."""
    del runs, run
    groups = list(reversed(index.groups()))
    if not groups:
        widgets.note(
            "This run recorded no groups: they are in groups.jsonl, which the embedded engine writes."
        )
        return
    left, right = st.columns([1.15, 3])
    with left:
        at = _table(groups)
    with right:
        group = groups[at]
        members = {one.name: one for one in index.group(group["step"], int(group["group"]))}
        _beside(index, group, members)


def _table(groups: Sequence[Mapping[str, Any]]) -> int:
    """Renders a table of the groups, which are lines of `groups.jsonl`. Returns the position in `groups` of
    the group that the user has selected; 0 if none is selected."""
    latest = groups[:PAGE]
    keys = [f"{group['step']}.{group['group']}" for group in latest]
    rewards = [[number(one.get("reward")) for one in group["episodes"]] for group in latest]
    known_rewards = [[r for r in row if r is not None] for row in rewards]
    columns = {
        "step": [group["step"] for group in latest],
        "task": [str(group.get("task")) for group in latest],
        "n": [len(row) for row in rewards],
        "mean": [sum(row) / len(row) if row else None for row in known_rewards],
        "spread": [max(row) - min(row) if row else None for row in known_rewards],
    }
    form = st.column_config.NumberColumn(format="%.3f", width=64)
    small = st.column_config.NumberColumn(width=44)
    widgets.grid(
        columns,
        "groups-grid",
        lambda row: url_state.go(group=keys[row]),
        config={"mean": form, "spread": form, "step": small, "n": small},
    )
    if len(groups) > PAGE:
        widgets.note(f"the latest {PAGE} of {len(groups)} groups")
    key = url_state.get("group")
    return keys.index(key) if key in keys else 0


def _beside(index: RunIndex, group: Mapping[str, Any], members: Mapping[str, Episode]) -> None:
    entries = group["episodes"]
    widgets.heading(f"step {group['step']} · group {group['group']} · {group.get('task')}")
    widest = max((abs(number(one.get("advantage")) or 0) for one in entries), default=0) or 1
    turns = _previews(index, members)
    for start in range(0, len(entries), BESIDE):
        for column, one in zip(
            st.columns(BESIDE, gap="small"), entries[start : start + BESIDE], strict=False
        ):
            with column:
                episode = members.get(str(one.get("episode")))
                st.html(_member(one, episode, turns, widest))
                if episode is not None:
                    st.button(
                        "Open episode",
                        key=f"open-{episode.name}",
                        on_click=url_state.go,
                        kwargs={"page": "Episode", "episode": episode.name, "item": None},
                    )


Turns = Mapping[str, Sequence[tuple[Item, str]]]
"""The first turns of each episode, by the episode's name. Each turn is a pair: its `Item` (the turn's
recorded lines, with those of its gradings), and the line of text that represents the turn while it is not
expanded."""


def _previews(index: RunIndex, members: Mapping[str, Episode]) -> Turns:
    """Returns the first turns of a group's episodes (`members`, by name), each with the line of text that
    represents it. If turns at the same position begin with the same text, this text is left out of their
    lines, so that the differences are visible."""
    turns = {}
    for name, episode in members.items():
        places = index.places(episode, 0, TURNS)
        turns[name] = items(places, index.load(episode, places))
    lines: dict[str, list[tuple[Item, str]]] = {name: [] for name in turns}
    for at in range(TURNS):
        same = {name: own[at] for name, own in turns.items() if at < len(own)}
        short = differing([markup.preview_of(one) for one in same.values()])
        for (name, one), preview in zip(same.items(), short, strict=True):
            lines[name].append((one, preview))
    return lines


def _member(one: Mapping[str, Any], episode: Episode | None, turns: Turns, widest: float) -> str:
    advantage = number(one.get("advantage"))
    share = 50 * abs(advantage or 0) / widest
    side = "up" if (advantage or 0) > 0 else "down"
    chips = [chip(f"reward {figure(number(one.get('reward')), '+z.3f')}")]
    body = ""
    if episode is not None:
        facts = episode.facts
        chips += [chip(f"best {figure(facts.best)}"), chip(facts.why or facts.how, "quiet")]
        shown = turns[str(one.get("episode"))]
        body = "".join(markup.item(each, preview=preview) for each, preview in shown)
        if (left := facts.items - TURNS) > 0:
            body += f'<div class="note">{left} turns more</div>'
    error = one.get("error")
    message = f'<div class="air error">{text(error)}</div>' if error else ""
    return (
        f'<div class="air column"><b>advantage {figure(advantage, "+z.3f")}</b>'
        f'<div class="adv"><i class="{side}" style="width:{share:.1f}%"></i></div>'
        f'<div class="facts air">{"".join(chips)}</div>{message}<div class="stack">{body}</div></div>'
    )
