"""The tables of an index, what can be asked of them, and the file that they are in."""

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

VERSION = 1
"""Of the tables; the file of another version is left alone."""
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
"""How episodes can be sorted."""


@dataclass(frozen=True)
class Filter:
    """Which episodes are wanted; what is None is not asked for."""

    task: str | None = None
    how: str | None = None
    """`well`, `failed` or `unfinished`."""
    errors: bool = False
    """Only episodes with a command that failed, a reply that was no action, or a failed validate."""
    text: str = ""
    """Part of the episode's id, its model or its error."""
    reward: tuple[float, float] | None = None
    """From and to, both included."""
    turns: tuple[int, int] | None = None
    """From and to, both included."""
    step: int | None = None
    """Of the training."""


@dataclass(frozen=True)
class Episode:
    """One row of the table of episodes."""

    file: int
    name: str
    """Of its file, without a suffix."""
    problems: int
    """Lines of its file that could not be read."""
    facts: Facts
    step: int | None
    """Of the training; None where no group was recorded."""
    group: int | None
    advantage: float | None


COLUMNS = "f.id, f.name, f.problems, m.step, m.grp, m.advantage, " + ", ".join(
    f"e.{name}" for name in FACTS
)
JOINED = "episodes e JOIN files f ON f.id = e.file LEFT JOIN members m ON m.episode = e.episode"


def episode_of(row: sqlite3.Row) -> Episode:
    """An episode from the columns `COLUMNS`."""
    return Episode(row[0], row[1], row[2], Facts(*row[6:]), row[3], row[4], row[5])


def check_sort(name: str) -> None:
    """Refuses what episodes cannot be sorted by.

    Raises:
        ConfigError: it is unknown.
    """
    if name not in SORTS:
        known = ", ".join(f'"{each}"' for each in SORTS)
        raise ConfigError(f"unknown: {name}", where="--sort", remedy=f"one of {known}")


def where(wanted: Filter) -> tuple[str, list[Any]]:
    """A condition, and the values for its question marks."""
    parts: list[str] = ["1"]
    values: list[Any] = []
    for column, value in (("e.task", wanted.task), ("e.how", wanted.how), ("m.step", wanted.step)):
        if value is not None:
            parts.append(f"{column} = ?")
            values.append(value)
    for column, between in (("e.reward", wanted.reward), ("e.turns", wanted.turns)):
        if between is not None:
            parts.append(f"{column} BETWEEN ? AND ?")
            values += between
    if wanted.errors:
        parts.append("e.errors > 0")
    if wanted.text:
        parts.append(
            "instr(lower(f.name || ' ' || ifnull(e.model, '') || ' ' || ifnull(e.error, '')), ?)"
        )
        values.append(wanted.text.lower())
    return " AND ".join(parts), values


def file_of(folder: Path) -> Path:
    """Where the index of a run lies."""
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    return paths.cache() / "view" / f"{folder.name[:40]}-{digest}.v{VERSION}.sqlite"


def opened(file: Path) -> sqlite3.Connection:
    """The index file, made where it is not; made anew where it is broken.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            return _connected(file)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
            file.unlink()  # a cache: what is not readable is read again from the run
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
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = OFF")  # a cache, made anew where it is lost
        db.executescript(_TABLES)
    except BaseException:  # Ctrl-C too: nobody else has it to close
        db.close()
        raise
    return db


@contextmanager
def translated(place: Path) -> Iterator[None]:
    """Translates what the disk or SQLite raises.

    Raises:
        UsageError: a file is gone or cannot be read.
        InfrastructureError: SQLite failed.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise MissingError("is gone", where=str(error.filename or place)) from error
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=str(place)) from error
    except sqlite3.Error as error:
        raise InfrastructureError(f"the index of {place} failed: {error}") from error
