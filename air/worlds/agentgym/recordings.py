"""Reads AgentGym's recorded trajectories: `{"item_id": …, "conversations": [{"from": …, "loss": …, "value":
…}, …]}`. Each begins with an opening: a user message with instructions, and a reply that no model wrote."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from air import json_lines
from air.errors import ConfigError, MissingError

_ROLES = {"human": "user", "gpt": "assistant", "system": "system"}


def messages(trajectory: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Converts a trajectory to chat messages with the keys `role` and `content`. A message of the assistant
    also has the key `loss`: whether training uses the message. Raises ValueError, KeyError or TypeError if
    the trajectory is malformed."""
    talk: list[dict[str, Any]] = []
    for said in trajectory["conversations"]:
        if said["from"] not in _ROLES:
            raise ValueError(f"`from` is {said['from']!r:.40}, not human or gpt")
        if not isinstance(said["value"], str):
            raise ValueError("`value` must be text")
        if said.get("loss") not in (None, True, False):
            raise ValueError("`loss` must be true, false or null")
        message: dict[str, Any] = {"role": _ROLES[said["from"]], "content": said["value"]}
        if message["role"] == "assistant":
            message["loss"] = said.get("loss") is True
        talk.append(message)
    return talk


class Opening(NamedTuple):
    """The texts of the first three messages of a recorded trajectory: the user's instructions, the reply to
    them, and the first observation."""

    instructions: str
    reply: str
    """The reply to the instructions, which no model wrote."""
    first: str
    """The first observation, as AgentGym's client shows it."""


def read_opening(path: Path, where: str) -> Opening:
    """Returns the opening of the first trajectory in the file `path`. `where` is the task id, for error
    messages. Raises MissingError if the file does not exist, and ConfigError if a trajectory is malformed or
    has no opening, or if the instructions or the replies to them differ between trajectories."""
    if not path.is_file():
        raise MissingError(f"there is no file {path}", where=where, remedy="correct `opening`")
    stat = path.stat()
    return _read_opening(path, where, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=64)
def _read_opening(path: Path, where: str, *version: int) -> Opening:
    openings = [_opening(place, entry, where) for place, entry in json_lines.entries(path)]
    different = {(each.instructions, each.reply) for each in openings}
    if len(different) != 1:
        raise ConfigError(
            f"the trajectories of {path} have {len(different)} different openings",
            where=where,
            remedy="name a file with the trajectories of this environment alone",
        )
    return openings[0]


def _opening(place: str, trajectory: Mapping[str, Any], where: str) -> Opening:
    try:
        said = messages(trajectory)
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{place} is no trajectory of AgentGym: {error}", where=where) from None
    if [one["role"] for one in said[:3]] != ["user", "assistant", "user"] or said[1]["loss"]:
        raise ConfigError(
            f"{place} does not begin with instructions, an untrained reply and an observation",
            where=where,
        )
    return Opening(*(one["content"] for one in said[:3]))
