"""Loads the tasks `question:NAME`: word problems (`gsm8k`, `gsm8k5`), SQL questions (`sql`, `sql5`) and
purchases in a simulated shop (`shop`).

NAME is one of these kinds, followed by nothing, by `-level` and a number, or by `@` and the path of a user's
own data: `gsm8k`, `gsm8k5-level2`, `gsm8k@data/gsm8k`, `sql5@data/bird`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from air.errors import ConfigError, MissingError
from air.worlds.questions.arithmetic import tasks as arithmetic
from air.worlds.questions.episodes import Name
from air.worlds.questions.shop import tasks as shop
from air.worlds.questions.sql import tasks as sql
from air.worlds.sources import WorldTask

_NAME = re.compile(r"(?P<kind>[a-z0-9]+?)(?:-level(?P<level>[0-9]{1,3}))?")


@dataclass(frozen=True)
class Kind:
    """A kind of question task, such as `gsm8k`: the function that loads a task of this kind, the kind's
    levels of difficulty, and a description of the user's data that it accepts."""

    load: Callable[[Name], WorldTask]
    levels: Sequence[int]
    files: str
    """A description of the user's data that this kind of task accepts, for error messages; empty if it
    accepts no data."""


KINDS: dict[str, Kind] = {
    **dict.fromkeys(arithmetic.TURNS, Kind(arithmetic.load, arithmetic.LEVELS, arithmetic.FILES)),
    **dict.fromkeys(sql.TURNS, Kind(sql.load, sql.LEVELS, sql.FILES)),
    **dict.fromkeys(shop.TURNS, Kind(shop.load, shop.LEVELS, shop.FILES)),
}
"""The kinds of question tasks by name, such as `gsm8k`."""


class QuestionSource:
    """Loads the tasks whose id begins with `question:`. It implements `air.worlds.sources.WorldSource`."""

    def load(self, name: str) -> WorldTask:
        """Returns the task `question:NAME`. Raises MissingError if the kind or the level does not exist or
        the user's data are absent, and ConfigError if the name or the data are malformed."""
        task_id = f"question:{name}"
        head, at, path = name.partition("@")
        match = _NAME.fullmatch(head)
        kind = KINDS.get(match["kind"]) if match else None
        if match is None or kind is None:
            raise MissingError(
                "there is no such question",
                where=task_id,
                remedy=f"known: {', '.join(self.names())}",
            )
        level = int(match["level"]) if match["level"] else None
        if level is not None and level not in kind.levels:
            known = ", ".join(map(str, kind.levels))
            raise MissingError("there is no such level", where=task_id, remedy=f"known: {known}")
        if at and not (kind.files and path and level is None):
            remedy = (
                f"give {kind.files} after the @, and no level" if kind.files else "leave out the @"
            )
            raise ConfigError("the name is malformed", where=task_id, remedy=remedy)
        folder = Path(path).expanduser().absolute() if at else None
        return kind.load(Name(task_id, match["kind"], level, folder))

    def names(self) -> list[str]:
        """Returns the names of all generated question tasks: each kind without a level, and each kind with
        each level."""
        levels = [f"{kind}-level{level}" for kind in KINDS for level in KINDS[kind].levels]
        return [*KINDS, *levels]


SOURCE = QuestionSource()
