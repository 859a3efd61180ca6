"""Loads the tasks `agentgym:NAME@URL`: the AgentGym environment NAME on the server at URL.

NAME may be followed by a selection of the environment's task ids: `textcraft:train`, `textcraft:test`,
`textcraft:17` (one task) or `textcraft:0-99`. An episode's seed selects one of these ids. Without a
selection, training seeds use the environment's training tasks, and validation seeds its held-out tasks.

URL may be followed by `#opening=FILE`, a file of AgentGym's recorded trajectories. Conversations then begin
like those in the file.
"""

from __future__ import annotations

import functools
import hashlib
import re
from pathlib import Path

import httpx

from air.errors import ConfigError, MissingError
from air.worlds.agentgym.environment import Environment
from air.worlds.agentgym.environments import ENVIRONMENTS
from air.worlds.agentgym.recordings import Opening, read_opening
from air.worlds.agentgym.world import AgentGymWorld
from air.worlds.sources import WorldTask

FACTS = {
    "success": "whether the task was solved: 1 or 0",
    "best_score": "the environment's own score, the best of the episode, from 0 to 1",
    "raw_score": "the score or reward that the server sent last",
    "num_actions": "the number of actions",
    "action_is_valid": "the share of actions that the environment accepted",
}
_WRITTEN = "write agentgym:NAME@URL, such as agentgym:textcraft@http://127.0.0.1:36001"


class AgentGymSource:
    """Loads the tasks whose id begins with `agentgym:`. It implements `air.worlds.sources.WorldSource`."""

    def load(self, name: str) -> WorldTask:
        """Returns the task with the name `NAME@URL` or `NAME:IDS@URL`, without any request to the server.
        Raises MissingError if there is no such environment or file, and ConfigError if the URL, the ids or
        the file are malformed."""
        chosen, at, url = name.partition("@")
        where = f"agentgym:{name}"
        if not at:
            raise ConfigError("the address of the server is missing", where=where, remedy=_WRITTEN)
        environment_name, _, ids = chosen.partition(":")
        environment = _environment(environment_name, where)
        url, _, options = url.partition("#")
        address = _address(url, where)
        opening = _opening(options, where)
        selected = _ids(environment, ids, where)
        recorded = opening and opening.first
        make = functools.partial(AgentGymWorld, environment, address, selected, recorded=recorded)
        instructions = opening.instructions if opening else environment.instructions
        decides = "\n".join([environment_name, ids, address, *(opening or [instructions])])
        return WorldTask(
            id=where,
            make=make,
            instructions=instructions,
            opening=opening and (opening.instructions, opening.reply),
            digest=hashlib.sha256(decides.encode()).hexdigest(),
            # The server may change between two episodes; textcraft's tasks depend on how it was started.
            replays=False,
            max_turns=environment.turns,
            format=environment.format,
            tools=environment.tools,
            seconds=1800.0,
            facts=FACTS if environment.refused else _without(FACTS, "action_is_valid"),
        )

    def names(self) -> list[str]:
        """Returns the task names that the command `air tasks` lists: none, because the addresses of servers
        are not known in advance."""
        return []


def _environment(name: str, where: str) -> Environment:
    if name not in ENVIRONMENTS:
        raise MissingError(
            f"there is no environment {name!r}",
            where=where,
            remedy=f"known: {', '.join(sorted(ENVIRONMENTS))}",
        )
    return ENVIRONMENTS[name]


def _opening(options: str, where: str) -> Opening | None:
    """Returns the opening (the first three messages) of the recorded trajectories in the file that `options`
    names. `options` is the text after `#` in a task id: `opening=FILE`, or empty, which gives None. `where`
    is the task id, for error messages. Raises MissingError if the file does not exist, and ConfigError if
    `options` or the file is malformed."""
    if not options:
        return None
    key, _, path = options.partition("=")
    if key != "opening" or not path:
        raise ConfigError(f"{options!r} is malformed", where=where, remedy="write #opening=FILE")
    return read_opening(Path(path).expanduser().absolute(), where)


def _without(facts: dict[str, str], name: str) -> dict[str, str]:
    return {each: meaning for each, meaning in facts.items() if each != name}


def _address(url: str, where: str) -> str:
    """Returns a server's URL without a final slash. `where` is the task id, for error messages. Raises
    ConfigError if the URL is invalid or contains a password or `?`."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigError(f"{url!r} is no address: {error}", where=where, remedy=_WRITTEN) from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigError(f"{url!r} is no address", where=where, remedy=_WRITTEN)
    if parsed.userinfo or parsed.query:
        raise ConfigError(
            "the address may have no password and no `?`: it is recorded with every episode",
            where=where,
            remedy=_WRITTEN,
        )
    return url.rstrip("/")


def _ids(environment: Environment, written: str, where: str) -> range | None:
    """Returns the task ids that `written` selects; None if `written` is empty. `written` is the selection in
    a task name, such as `train` or `0-99` (both ends included). `where` is the task id, for error messages.
    Raises ConfigError if `written` is malformed or selects ids that the environment does not have."""
    if written in ("", "train", "test"):
        return {"": None, "train": environment.train, "test": environment.test}[written]
    match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", written)
    if match is None:
        raise ConfigError(
            f"{written!r} selects no tasks",
            where=where,
            remedy="write train, test, an id such as 17, or a range such as 0-99",
        )
    first = int(match[1])
    last = int(match[2] or first)
    every = environment.ids
    if not every.start <= first <= last < every.stop:
        raise ConfigError(
            f"{written!r}: the ids of {environment.name} are {every.start} to {every.stop - 1}",
            where=where,
            remedy="select ids from this range",
        )
    return range(first, last + 1)
