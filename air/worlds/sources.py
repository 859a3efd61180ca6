"""The tasks of worlds other than research tasks: finds the task that a task id names.

A task id has the prefix of its source, such as `game:sokoban6`. `SOURCES` names the module of each source,
which is imported only when a task id needs it. Any other prefix is the name of a module of your own, which
Python can import and which has the source as its object `SOURCE`: `my_worlds:maze` is
`my_worlds.SOURCE.load("maze")`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from air import tasks
from air.actions.base import Action
from air.config import plugin
from air.errors import ConfigError, MissingError
from air.sandbox.contract.box import Box, BoxSpec
from air.worlds.base import Run, World

SOURCES = {
    "game": "air.worlds.games:SOURCE",
    "question": "air.worlds.questions:SOURCE",
    "rows": "air.worlds.rows:SOURCE",
    "agentgym": "air.worlds.agentgym:SOURCE",
    "openenv": "air.worlds.openenv:SOURCE",
    "ors": "air.worlds.ors:SOURCE",
    "posed": "air.worlds.proposals:POSED",
    "proposal": "air.worlds.proposals:PROPOSALS",
}
"""The import path of each source, by the prefix of its task ids."""


Player = Callable[[str], Action]
"""A scripted player of one episode: it maps the text of an observation to the next action."""


@dataclass(frozen=True)
class WorldTask:
    """One task of a world: the rules for the agent, the limits of an episode, and how its world is made."""

    id: str
    """The whole task id, such as `game:sokoban6`."""
    instructions: str
    """The rules of the world, a part of the first prompt. The first observation of `reset` follows them."""
    digest: str
    """A digest of everything that decides an episode besides its seed: rules, levels, data, a remote address.
    The trajectory of an episode records it."""
    replays: bool
    """Whether the same seed and the same actions give the same observations and rewards exactly."""
    max_turns: int
    """The number of turns of an episode, unless the run file sets `env.agent.max_turns`."""
    make: Callable[[], World[Action]] | None = None
    """Makes the world of one episode. It starts nothing: `reset` does. Exactly one of the fields `make`,
    `make_in` and `make_checked` is set; the method `world` calls it."""
    box: BoxSpec | None = None
    """The box in which the agent acts; None: the world needs none. Each episode has a box of its own from the
    pool of agents' boxes. The run file's `env.agent.runtime.type` replaces its `provider`."""
    make_in: Callable[[Box], World[Action]] | None = None
    """Makes the world of one episode in its box, in which nothing has run. For a task with `box` and without
    `check_box`."""
    check_box: BoxSpec | None = None
    """The fresh box in which the world checks an answer, for example with hidden tests; None: the world needs
    no such box. Each check has a box of its own from the pool of graders' boxes, which the agent never
    sees."""
    make_checked: Callable[[Box | None, Run], World[Action]] | None = None
    """Makes the world of one episode from two arguments: its box (None if `box` is None), and the function
    that runs a command in a fresh `check_box`. For a task with `check_box`."""
    names_turns: bool = False
    """Whether the rules tell the agent how many turns it has. `[embedded.rounds]` refuses such tasks."""
    format: str = "think_answer"
    """The action format, unless the run file sets `env.agent.harness.format`."""
    format_penalty: float = 0.0
    """What a reply that is no action costs, once for each turn. Not negative."""
    unanswered: float = 0.0
    """The reward to which an episode is brought that its world does not end: out of turns, context or time,
    or its agent has ended the box (`air.worlds.base.without_end`). Not positive. If an episode may earn less
    than 0, it is the least that one earns which the world ends: else an agent would escape from a bad answer
    by giving none."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """The tools that the world offers, as JSON schemas in the form of OpenAI's `tools`; empty if none."""
    answers: bool = False
    """Whether the agent may also answer in words in a world with tools (`Action.answer`). In a world without
    tools it always may."""
    seconds: float = 600.0
    """The time limit of an episode, in seconds."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """The meaning of each name in `World.facts`, for documentation and the viewer."""
    player: Callable[[World[Action], int], Player] | None = None
    """Makes a scripted player that plays well, from a world that has been reset and its seed. `air demos`
    writes demonstrations with it. None if there is no such player."""

    def __post_init__(self) -> None:
        """Raises ConfigError if the fields about boxes contradict each other, or `unanswered` is positive."""
        wanted = "make" if self.box is None else "make_in"
        wanted = wanted if self.check_box is None else "make_checked"
        makers = {"make": self.make, "make_in": self.make_in, "make_checked": self.make_checked}
        if [name for name, maker in makers.items() if maker is not None] != [wanted]:
            raise ConfigError(f"must have `{wanted}`, and no other way to make it", where=self.id)
        if not -math.inf < self.unanswered <= 0:
            raise ConfigError("`unanswered` must be a finite number of at most 0", where=self.id)
        for spec in (self.box, self.check_box):
            if spec is not None and (spec.gpus or spec.second_user or spec.open):
                raise ConfigError(
                    "its box must not have `gpus`, `second_user` or `open`",
                    where=self.id,
                    remedy="leave them out of its BoxSpec",
                )
        if self.replays and self.box is not None:
            raise ConfigError(
                "programs in a box need not do the same again",
                where=self.id,
                remedy="set replays=False",
            )

    @property
    def in_boxes(self) -> bool:
        """Whether the world needs boxes, for the agent or for checks."""
        return self.box is not None or self.check_box is not None

    def world(self, box: Box | None = None, run: Run | None = None) -> World[Action]:
        """Makes the world of one episode, with the agent's box and the function for checks if the task needs
        them. Raises ConfigError if a needed argument is missing."""
        if self.make is not None:
            return self.make()
        if self.make_in is not None and box is not None:
            return self.make_in(box)
        lent = box is not None or self.box is None
        if self.make_checked is not None and run is not None and lent:
            return self.make_checked(box, run)
        raise ConfigError("needs boxes, which are not here", where=self.id)


class WorldSource(Protocol):
    """The tasks of one prefix."""

    def load(self, name: str) -> WorldTask:
        """Returns the task whose id is the prefix, a colon and `name`. Does not use the network. Raises
        MissingError if there is none, and ConfigError if `name` is malformed."""
        ...

    def names(self) -> list[str]:
        """Returns the names that `air tasks` lists; empty if they cannot be known."""
        ...


VALIDATION_SEED = 1_000_123
"""The first seed of evaluation episodes. Training episodes have smaller seeds, so that no policy is evaluated
on what it was trained on."""


def is_world(task_id: str) -> bool:
    """Whether a task id names a task of a world other than a research task."""
    prefix, colon, _ = task_id.partition(":")
    return bool(colon) and prefix not in tasks.PREFIXES


def load(task_id: str) -> WorldTask:
    """Returns the task with this id. Raises MissingError if there is no such source or task, and ConfigError
    if the id is malformed."""
    prefix, _, name = task_id.partition(":")
    return source(prefix).load(name)


def source(prefix: str) -> WorldSource:
    """Returns the source with a prefix of `SOURCES`, or else the object `SOURCE` of the module `prefix`.
    Raises MissingError if there is neither, and ConfigError if the object is no source."""
    if prefix in SOURCES:
        found: WorldSource = plugin(SOURCES[prefix])
        return found
    remedy = f"use {', '.join(sorted(SOURCES))}, or a module that has `SOURCE`"
    if not all(part.isidentifier() for part in prefix.split(".")):
        raise MissingError(f"there is no source of tasks {prefix!r}", remedy=remedy)
    try:
        found = plugin(f"{prefix}:SOURCE")
    except MissingError as error:
        raise MissingError(
            f"there is no source of tasks {prefix!r} ({error})",
            remedy=remedy,
        ) from error
    if not (callable(getattr(found, "load", None)) and callable(getattr(found, "names", None))):
        raise ConfigError(
            f"`SOURCE` of the module {prefix!r} is no source of tasks",
            remedy="give it the methods `load` and `names` of air.worlds.sources.WorldSource",
        )
    return found
