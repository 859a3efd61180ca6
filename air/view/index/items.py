"""Groups the lines of a trajectory file (the recording of an episode) into items, for display. An item is one
turn of the agent (a line of the type `step`) together with the gradings of the agent's work that belong to it
(lines of the type `validate`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from air.view.index.facts import Place

Line = dict[str, Any]


@dataclass
class Item:
    """The recorded lines of one turn (`step`) and of its gradings (`validates`). If an agent's own program
    played the episode and recorded no turns, an item has only gradings, and `step` is None."""

    number: int
    """The item's position in the episode, from 0."""
    step: Line | None = None
    validates: list[Line] = field(default_factory=list)
    others: list[Line] = field(default_factory=list)
    """Lines whose type this version of air does not know."""
    bad: bool = False
    """Whether one of the item's lines records a failure, such as a failed command (see `Place.bad`)."""


def items(places: Sequence[Place], lines: Sequence[Line]) -> list[Item]:
    """Groups the lines of a trajectory (the recording of an episode) into items, each a turn with its
    gradings. `places[i]` is the `Place` of `lines[i]`, which says to which item the line belongs."""
    by_number: dict[int, Item] = {}
    for place, line in zip(places, lines, strict=True):
        item = by_number.setdefault(place.item, Item(place.item))
        item.bad |= bool(place.bad)
        if place.kind == "step":
            item.step = line
        elif place.kind == "validate":
            item.validates.append(line)
        else:
            item.others.append(line)
    return list(by_number.values())


def thought(step: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the parts of the model's reply in a turn that come before and after the action, both without
    the code fence around the action. `step` is the turn's line in the trajectory (the recording of the
    episode)."""
    reply, action = step.get("reply"), step.get("action")
    if not isinstance(reply, str):
        return "", ""
    at = reply.find(action) if isinstance(action, str) and action else -1
    if at < 0 or not isinstance(action, str):
        return reply.strip(), ""
    before, after = reply[:at].rstrip(), reply[at + len(action) :].strip()
    head, _, last = before.rpartition("\n")
    if last.lstrip().startswith("```"):
        before = head.rstrip()
    return before, after.removeprefix("```").strip()


def reasoning(step: Mapping[str, Any]) -> str:
    """Returns the reasoning in a turn, which some model servers return separately from the reply; an empty
    string if there is none. `step` is the turn's line in the trajectory (the recording of the episode)."""
    text = step.get("reasoning")
    return text if isinstance(text, str) else ""


def outputs(step: Mapping[str, Any]) -> tuple[str, str]:
    """Returns two texts of a turn: the full result (observation) of the action, and the text that the model
    saw instead of it, for instance a shortened one (empty if the model saw the full result). `step` is the
    turn's line in the trajectory, the recording of the episode.

    Trajectories of version 1 record only the text that the model saw; then it is the first text.
    """
    world, received = step.get("observation"), step.get("shown")
    world, received = world or "", received or ""
    if not isinstance(world, str) or not isinstance(received, str):
        return str(world or received), ""
    return (world, "" if received == world else received) if world else (received, "")


def diff_of(step: Mapping[str, Any] | None) -> tuple[list[Line], str, str]:
    """Returns three values about the files that a turn changed: the list of the files, their unified diff,
    and the reason why the diff is incomplete (empty if it is complete). `step` is the turn's line in the
    trajectory (the recording of the episode); None: no changes."""
    diff = (step or {}).get("diff")
    if not isinstance(diff, dict):
        return [], "", ""
    files = diff.get("files")
    files = [one for one in files if isinstance(one, dict)] if isinstance(files, list) else []
    problem = str(diff.get("problem") or "") or (
        "further changes were not recorded" if diff.get("cut") else ""
    )
    text = diff.get("text")
    return files, text if isinstance(text, str) else "", problem
