"""Defines the SQLite tables of a run's index (the database about its recorded episodes), the filters and sort
orders for queries, and the function that opens the index file."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from air import paths
from air.errors import ConfigError, InfrastructureError, MissingError, UsageError
from air.view.index.facts import Facts, Place

VERSION = 2
"""The version of the tables' layout. It is part of the name of the index file, so that versions of air with
different layouts use different files."""
FACTS = list(Facts.__dataclass_fields__)
PLACES = list(Place.__dataclass_fields__)
_TABLES = f"""
CREATE TABLE IF NOT EXISTS files (
  id INTEGER PRIMARY KEY, name TEXT UNIQUE, size INTEGER, mtime_ns INTEGER, offset INTEGER, seal BLOB,
  problems INTEGER);
CREATE TABLE IF NOT EXISTS episodes (file INTEGER PRIMARY KEY, {", ".join(FACTS)});
CREATE TABLE IF NOT EXISTS lines (
  file INTEGER, {", ".join(PLACES)}, PRIMARY KEY (file, seq)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS log (kind TEXT, seq INTEGER PRIMARY KEY, step INTEGER, data TEXT);
CREATE TABLE IF NOT EXISTS members (episode TEXT PRIMARY KEY, step INTEGER, grp INTEGER, advantage REAL);
CREATE INDEX IF NOT EXISTS members_group ON members (step, grp);
CREATE INDEX IF NOT EXISTS episodes_id ON episodes (episode);
CREATE INDEX IF NOT EXISTS lines_item ON lines (file, item);
"""
SORTS = {
    "newest": "started DESC",
    "oldest": "started ASC",
    "reward, best first": "reward IS NULL, reward DESC",
    "reward, worst first": "reward IS NULL, reward ASC",
    "longest": "turns DESC",
    "shortest": "turns ASC",
    "most errors": "errors DESC",
    "slowest": "seconds DESC",
    "task": "task ASC, reward DESC",
}
"""The sort orders for lists of episodes. Maps the name that users see to the SQL expression for `ORDER
BY`."""


@dataclass(frozen=True)
class Filter:
    """Conditions that select episodes. A field with its default value sets no condition."""

    task: str | None = None
    how: str | None = None
    """How the episode must have ended: `well`, `failed` (something failed that the agent did not cause) or
    `unfinished` (it is running, or was killed)."""
    errors: bool = False
    """If true, the episode must have a turn with a failed command or without an action, or a grading in which
    the agent's result was missing or malformed."""
    text: str = ""
    """A string that must occur in the name of the recording, the model's name or the error. Upper and lower
    case do not matter."""
    reward: tuple[float, float] | None = None
    """The lowest and the highest reward that the episode may have; None: any reward."""
    turns: tuple[int, int] | None = None
    """The lowest and the highest number of turns that the episode may have; None: any number."""
    step: int | None = None
    """The training step to which the episode must belong, according to `groups.jsonl`; None: any step."""


@dataclass(frozen=True)
class Episode:
    """One episode in the index of a run: its recording (the trajectory file), the main facts about it, and
    its group in training (the episodes whose rewards were compared)."""

    file: int
    """The id, in the index, of the file with the episode's recording."""
    name: str
    """The name, without suffix, of the file with the episode's recording."""
    problems: int
    """The number of lines in the episode's recording that could not be read."""
    facts: Facts
    step: int | None
    """The training step to which the episode belongs; None if `groups.jsonl` does not list the episode."""
    group: int | None
    """The number of the episode's group within the training step, from 0; None if `step` is None."""
    advantage: float | None


COLUMNS = "f.id, f.name, f.problems, m.step, m.grp, m.advantage, " + ", ".join(
    f"e.{name}" for name in FACTS
)
JOINED = "episodes e JOIN files f ON f.id = e.file LEFT JOIN members m ON m.episode = e.episode"


def episode_of(row: sqlite3.Row) -> Episode:
    """Converts a row of an SQL result with the columns `COLUMNS` to an `Episode`."""
    return Episode(row[0], row[1], row[2], Facts(*row[6:]), row[3], row[4], row[5])


def sort_order(name: str) -> str:
    """Returns the full name of a sort order (a key of `SORTS`), which is `name` itself or the first one that
    begins with `name`: for `reward`, this is `reward, best first`. Raises ConfigError if there is none."""
    for order in (name, *SORTS):
        if order in SORTS and order.startswith(name):
            return order
    known = ", ".join(f'"{each}"' for each in SORTS)
    raise ConfigError(f"unknown: {name}", where="--sort", remedy=f"one of {known}")


def where(conditions: Filter) -> tuple[str, list[Any]]:
    """Converts a filter to an SQL condition. Returns the condition, and the values for its placeholders
    (`?`)."""
    parts: list[str] = ["1"]
    values: list[Any] = []
    for column, value in (
        ("e.task", conditions.task),
        ("e.how", conditions.how),
        ("m.step", conditions.step),
    ):
        if value is not None:
            parts.append(f"{column} = ?")
            values.append(value)
    for column, between in (("e.reward", conditions.reward), ("e.turns", conditions.turns)):
        if between is not None:
            parts.append(f"{column} BETWEEN ? AND ?")
            values += between
    if conditions.errors:
        parts.append("e.errors > 0")
    if conditions.text:
        parts.append(
            "instr(casefold(f.name || ' ' || ifnull(e.model, '') || ' ' || ifnull(e.error, '')), ?)"
        )
        values.append(conditions.text.casefold())
    return " AND ".join(parts), values


def file_of(folder: Path) -> Path:
    """Returns the path of the index file for the run in `folder`. It is in the cache folder."""
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    return paths.cache() / "view" / f"{folder.name[:40]}-{digest}.v{VERSION}.sqlite"


def opened(file: Path) -> sqlite3.Connection:
    """Opens a run's index file, a SQLite database, and returns the connection. If the file is absent or
    damaged, creates an empty index.

    Raises UsageError if the file cannot be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            return _connected(file)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
            file.unlink()  # only a cache: it is filled again from the run's files
            return _connected(file)
    except (OSError, sqlite3.Error) as error:
        raise UsageError(
            f"the index cannot be written: {error}",
            where=str(file),
            remedy="set AIR_CACHE to a folder for caches",
        ) from error


def _connected(file: Path) -> sqlite3.Connection:
    db = sqlite3.connect(file, timeout=60, isolation_level=None, check_same_thread=False)
    try:
        db.row_factory = sqlite3.Row
        # SQLite's own `lower` changes ASCII letters only.
        db.create_function("casefold", 1, str.casefold, deterministic=True)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = OFF")  # only a cache: it may be lost
        db.executescript(_TABLES)
    except BaseException:  # Ctrl-C too: no caller could close it
        db.close()
        raise
    return db


@contextmanager
def translated(place: Path) -> Iterator[None]:
    """Context manager: converts errors of the operating system and of SQLite in the block to errors of air.
    Their texts name `place`, the path of a file or of a run's folder.

    A missing file becomes MissingError, an unreadable file UsageError, and a failure of SQLite
    InfrastructureError.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise MissingError("is gone", where=str(error.filename or place)) from error
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=str(place)) from error
    except sqlite3.Error as error:
        raise InfrastructureError(f"the index of {place} failed: {error}") from error
