"""Generates SQL questions. Each has a database, a question in words, and the expected result."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from air.tools.sql.runner import Database
from air.tools.sql.worker import fingerprint
from air.worlds.questions.episodes import belongs
from air.worlds.questions.sql.schemas import SCHEMAS, Schema, build
from air.worlds.questions.sql.templates import TEMPLATES, Template

LEVELS = (1, 2, 3, 4)
_MANY = 10_000
"""The maximum number of random draws for one question. If no draw gives a usable question, an AssertionError
is raised."""


FileVersion = tuple[int, int, int]
"""The inode number, the size and the time of the last change of a file, by which a change of the file is
noticed."""


def file_version(path: Path) -> FileVersion | None:
    """Returns the version of a file (its inode number, size and time of the last change); None if there is no
    file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


@dataclass(frozen=True)
class Question:
    """A question about a database."""

    schema: str
    """The `CREATE TABLE` statements of the database."""
    question: str
    gold: str
    """The reference query, whose result is the right answer."""
    expected: str
    """A hash of the rows in the result of the gold (reference) query. It does not depend on the order of the
    rows (`air.tools.sql.worker.fingerprint`)."""
    database: Database
    wrong: tuple[str, ...] = ()
    """Plausible queries with a different result than the gold query. Only generated questions have them."""
    where: str = ""
    """The file and row of a question from the user's data, for error messages. Empty if it was generated."""
    file_version: FileVersion | None = None
    """The version of the database file from which `expected` was computed. None if there is no file."""


Questions = Callable[[int], Question]
"""A function that takes an episode's seed and returns the question for this episode."""


def generated(level: int | None) -> Questions:
    """Returns a function that takes a seed and generates the question for it. All questions have the level
    `level`. If `level` is None, the level is drawn uniformly for each seed."""

    def question_of(seed: int) -> Question:
        draw = random.Random(f"sql {level} {seed}")
        chosen = level or draw.choice(LEVELS)
        for _ in range(_MANY):
            question = _try(chosen, draw, seed)
            if question is not None:
                return question
        raise AssertionError(f"no question of level {chosen} belongs to seed {seed}")

    return question_of


def _try(level: int, draw: random.Random, seed: int) -> Question | None:
    """Draws a question and a database, and returns the question. Returns None if the database is unsuitable
    for the question (see `_tells_apart`), or if the question must not be asked with `seed`: validation seeds
    and training seeds have different questions."""
    template, schema = draw.choice(TEMPLATES[level]), draw.choice(SCHEMAS)
    words = _words(schema, draw)
    gold = template.gold.format(**words)
    if not belongs(gold, seed):
        return None
    connection = build(schema, draw)
    try:
        expected = _tells_apart(connection, template, words)
        if expected is None:
            return None
        wrong = tuple(sql.format(**words) for sql in template.wrong)
        text = template.question.format(**words)
        image = connection.serialize()
    finally:
        connection.close()
    return Question("\n".join(schema.statements), text, gold, expected, Database(image), wrong)


def _tells_apart(
    connection: sqlite3.Connection, template: Template, words: dict[str, Any]
) -> str | None:
    """Checks that the answer to a question can be judged by the database of `connection`. `template` is the
    template of the question, and `words` are the values of its placeholders. Returns a hash of the result of
    the gold (reference) query. Returns None, for an unsuitable database, if this result is trivial (no rows,
    or a single NULL or 0), if a wrong query of the template has the same result, or if an equivalent query
    has another result."""

    def result(sql: str) -> list[tuple[Any, ...]]:
        return connection.execute(sql.format(**words)).fetchall()

    rows = result(template.gold)
    expected = fingerprint(rows)
    if not rows or rows == [(None,)] or rows == [(0,)]:
        return None
    if any(fingerprint(result(sql)) == expected for sql in template.wrong):
        return None
    if any(fingerprint(result(sql)) != expected for sql in template.same):
        return None
    return expected


def _words(schema: Schema, draw: random.Random) -> dict[str, Any]:
    """Draws the values of a template's placeholders. Returns a dict from a placeholder, such as `x`, to its
    value. A threshold for a column comes from the middle third of the column's range, so that it divides the
    rows into two sizeable parts."""
    parent, child, event = schema.parent, schema.child, schema.event

    def middle(least: int, greatest: int) -> int:
        third = (greatest - least) // 3
        return draw.randint(least + third, greatest - third)

    return {
        "P": parent,
        "C": child,
        "E": event,
        "pk": schema.parent_key,
        "ck": schema.child_key,
        "u": draw.choice(parent.categories),
        "v": draw.choice(child.categories),
        "w": draw.choice(event.categories),
        "x": middle(child.least, child.greatest),
        "y": middle(parent.least, parent.greatest),
        "k": draw.randint(2, 4),
        "n": draw.randint(6, 12),
        "s": middle(5 * event.least, 10 * event.greatest),
    }
