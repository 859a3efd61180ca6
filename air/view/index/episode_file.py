"""Reads a single trajectory file (the recording of one episode) from start to end, for a view that has no
index of the run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from air.errors import ConfigError
from air.json_lines import Mark, Tail, load
from air.view.index.facts import Facts, Place, read_lines
from air.view.index.items import Item, items
from air.view.index.sqlite_schema import translated


@dataclass(frozen=True)
class EpisodeFile:
    """A trajectory file (the recording of one episode) that `scan` has read: the main facts about the
    episode, and the position (`Place`) of each line."""

    path: Path
    facts: Facts
    places: list[Place]
    problems: int
    """The number of lines in the file that could not be read."""

    def head(self) -> dict[str, dict[str, Any]]:
        """Reads the lines that belong to no turn, such as `start` and `end`, and returns them as a dict by
        the line's type. If the file has no line `start` or `end`, the value for this type is an empty
        dict."""
        lines = self._load([place for place in self.places if place.item < 0])
        return {"start": {}, "end": {}} | {line["type"]: line for line in lines}

    def items(self, first: int, count: int) -> list[Item]:
        """Reads `count` items, beginning with the item at position `first` (from 0), and returns them. An
        item is a turn with its gradings."""
        places = [place for place in self.places if first <= place.item < first + count]
        return items(places, self._load(places))

    def _load(self, places: list[Place]) -> list[dict[str, Any]]:
        with translated(self.path):
            return load(self.path, ((place.offset, place.length) for place in places))


def scan(path: Path) -> EpisodeFile:
    """Reads a whole trajectory file (the recording of one episode).

    Raises UsageError if the file cannot be read, and ConfigError if it is not a trajectory.
    """
    facts = Facts()
    with translated(path):
        places, problems = read_lines(facts, Tail(path, Mark()))
    if not any(place.kind in ("start", "step", "validate", "end") for place in places):
        raise ConfigError(
            "is not a trajectory", where=str(path), remedy="name a file in a run's trajectories/"
        )
    return EpisodeFile(path, facts, places, problems)
