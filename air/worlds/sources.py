"""Loads the tasks of all worlds (environments for an agent) by task id, except research tasks.

A task id begins with a prefix, such as `game` in `game:sokoban6`. For each prefix there is a source, an
object that loads the tasks with this prefix. `SOURCES` contains the import paths of air's sources, which are
imported only when needed. Any other prefix is the name of a user's module that Python can import; its source
is the object `SOURCE` in that module: `my_worlds:maze` is `my_worlds.SOURCE.load("maze")`.
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
"""The import path, `MODULE:OBJECT`, of the source (the object that loads tasks) for each prefix of task
ids."""


Player = Callable[[str], Action]
"""A scripted player of one episode: it maps the text of an observation to the next action."""


@dataclass(frozen=True)
class WorldTask:
    """A task other than a research task: the rules for the agent, the limits of an episode, and the function
    that makes the world, the environment in which the agent acts during one episode."""

    id: str
    """The whole task id, such as `game:sokoban6`."""
    instructions: str
    """The rules for the agent, as a part of the first prompt. The first observation follows them."""
    digest: str
    """A hash of everything on which an episode depends besides its seed: rules, levels, data, a remote URL.
    It is stored in trajectories, the records of episodes."""
    replays: bool
    """Whether the same seed and the same actions always give the same observations and rewards."""
    max_turns: int
    """The default maximum number of turns of an episode. The run file's `env.agent.max_turns` replaces it."""
    make: Callable[[], World[Action]] | None = None
    """A function that makes the world (the environment) of one episode, for a task that needs no boxes. The
    world starts nothing before `reset`. Exactly one of the fields `make`, `make_in` and `make_checked` must
    be set: the method `world` calls the function in that field."""
    box: BoxSpec | None = None
    """The specification of the box (an isolated place for commands, such as a container) in which the agent
    acts; None if the world needs no box. Each episode gets its own box from the pool of agents' boxes. The
    run file's `env.agent.runtime.type` replaces the box's `provider`."""
    make_in: Callable[[Box], World[Action]] | None = None
    """A function that makes the world (the environment) of one episode. Its argument is the episode's box,
    the isolated place for the agent's commands, in which nothing has run yet. For a task with `box` and
    without `check_box`."""
    check_box: BoxSpec | None = None
    """The specification of a fresh box (isolated place) in which the world grades an answer, for example with
    hidden tests; None if the world needs no such box. Each grading gets its own box, which the agent cannot
    access, from the pool of graders' boxes."""
    make_checked: Callable[[Box | None, Run], World[Action]] | None = None
    """A function that makes the world (the environment) of one episode. Its arguments are the episode's box
    (None if `box` is None), and a function that runs a command in a fresh box as `check_box` specifies. For a
    task with `check_box`."""
    opening: tuple[str, str] | None = None
    """A user message and a reply to it, with which every conversation begins, as recorded conversations do.
    The first observation follows as another user message. The two messages replace all that the agent would
    otherwise be told: `instructions`, the instructions of the action format, and the notes on the remaining
    turns. None: the conversation begins with a system prompt."""
    names_turns: bool = False
    """Whether the rules tell the agent its maximum number of turns. The setting `[embedded.rounds]`, which
    changes that number, cannot be used with such a task."""
    format: str = "think_answer"
    """The name of the default action format (see `air.actions.get`). The run file's
    `env.agent.harness.format` replaces it."""
    format_penalty: float = 0.0
    """Subtracted from the reward for each turn with a reply that is not a valid action. It must not be
    negative."""
    unanswered: float = 0.0
    """The reward, 0 or less, for an episode in which the world never returned `done`, because turns, context
    or time ran out or the agent ended its box. If the world has already given negative rewards, they count
    towards this amount (see `air.worlds.base.without_end`). If an answer can earn less than 0, set this field
    to the lowest reward of an answer: otherwise an agent could avoid the reward of a bad answer by not
    answering."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """The JSON schemas of the tools that the world offers, in the format of the field `tools` in OpenAI's
    API; empty if none."""
    answers: bool = False
    """Whether the agent may act by an answer in words (`Action.answer`) although the world has tools. In a
    world without tools it always may."""
    seconds: float = 600.0
    """The time limit of an episode, in seconds."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """The meaning of each fact (each number that `World.facts` returns), by name, for documentation and the
    viewer of trajectories."""
    player: Callable[[World[Action], int], Player] | None = None
    """A function that makes a scripted player, which plays well. Its arguments are a world after `reset`, and
    the seed of its episode. The command `air demos` uses it to generate demonstrations. None if there is no
    such player."""

    def __post_init__(self) -> None:
        """Raises ConfigError if the fields about boxes contradict each other, or if `unanswered` is
        positive or not finite."""
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
        """Whether the world needs boxes (isolated places for commands), for the agent or for grading."""
        return self.box is not None or self.check_box is not None

    def world(self, box: Box | None = None, run: Run | None = None) -> World[Action]:
        """Returns a new world, the environment of one episode. `box` is the agent's box (the isolated place
        in which it acts), and `run` runs a command in a fresh box for grading. Raises ConfigError if the task
        needs an argument that is missing."""
        if self.make is not None:
            return self.make()
        if self.make_in is not None and box is not None:
            return self.make_in(box)
        lent = box is not None or self.box is None
        if self.make_checked is not None and run is not None and lent:
            return self.make_checked(box, run)
        raise ConfigError("needs boxes, which are not here", where=self.id)


class WorldSource(Protocol):
    """The interface of a source, an object that loads the tasks whose ids begin with a certain prefix."""

    def load(self, name: str) -> WorldTask:
        """Returns the task `PREFIX:name`, without using the network. Raises MissingError if there is no
        such task, and ConfigError if `name` is malformed."""
        ...

    def names(self) -> list[str]:
        """Returns the names that the command `air tasks` lists; an empty list if the names are not known in
        advance."""
        ...


VALIDATION_SEED = 1_000_123
"""The first seed of evaluation episodes. Training episodes have smaller seeds, so that no evaluation episode
is also a training episode."""


def is_world(task_id: str) -> bool:
    """Returns whether a task id is that of a task other than a research task, such as a game. Only the id's
    prefix counts; the task need not exist."""
    prefix, colon, _ = task_id.partition(":")
    return bool(colon) and prefix not in tasks.PREFIXES


def load(task_id: str) -> WorldTask:
    """Returns the task with the id `task_id`. Raises MissingError if there is no such source or task, and
    ConfigError if the id is malformed."""
    prefix, _, name = task_id.partition(":")
    return source(prefix).load(name)


def source(prefix: str) -> WorldSource:
    """Returns the source of the task ids that begin with `prefix`: the entry of `SOURCES`, or else the object
    `SOURCE` of the Python module named `prefix`. Raises MissingError if neither exists, and ConfigError if
    the object is not a source."""
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
