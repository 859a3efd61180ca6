"""Reads SQL questions from a user's copy of BIRD, a dataset of questions about SQL databases: `dev.json` with
`dev_databases`, and optionally `train.json` with `train_databases`.

Validation seeds use `dev.json`; training seeds use `train.json`. Without `train.json`, about four fifths of
the rows of `dev.json` are for training seeds and the rest for validation seeds. Consecutive seeds use all
rows of their split before any row is repeated.

Each row has a gold query, whose result is the right answer. The gold query runs when the row is used for the
first time in a process. If it fails, for example at a limit, every episode with this row ends with an
InfrastructureError that names the row. If its result is empty, the next row is used instead, because any
query without results would count as right, and a warning names the row.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import sqlite3
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from air import json_lines
from air.errors import ConfigError, InfrastructureError, MissingError
from air.tools.sql.runner import Database, Limits, Result, run
from air.worlds.questions.episodes import belongs, for_validation
from air.worlds.questions.sql.questions import FileVersion, Question, Questions, file_version

# verifiers' servers show the messages of loggers below their own name.
_LOG = logging.getLogger("verifiers.v1.air.questions")
LIMITS = Limits(steps=20_000_000_000, seconds=180.0, rows=1_000_000, bytes=64_000_000)
"""The limits of one query on a database of the dataset BIRD. GRL, the project on whose agents these question
tasks are modelled, allows 180 seconds as well."""


@dataclass(frozen=True)
class _Row:
    """A row of BIRD's question file."""

    where: str
    """The file, the row's number (from 1) and its `question_id`, for error messages."""
    question: str
    gold: str
    file: Path
    """The path of the SQLite database that the question is about."""


def from_folder(folder: Path, limits: Limits = LIMITS) -> tuple[Questions, str]:
    """Returns two values for `folder`, a copy of the dataset BIRD: a function from a seed to a question; and
    a digest (hash) of the question files and of the databases' names and sizes. `limits` apply to the gold
    queries, whose results are the right answers. Raises MissingError if a file is absent, and ConfigError if
    a row is malformed or a split has no rows. The returned function raises InfrastructureError if the gold
    query of the seed's row fails."""
    dev, digests = _rows(folder, "dev")
    rows = {True: dev}
    if (folder / "train.json").exists():
        rows[False], train_digest = _rows(folder, "train")
        digests += train_digest
    else:
        rows = {
            v: [row for row in dev if belongs(row.gold, 10**9 if v else 0)] for v in (True, False)
        }
    for validation, part in rows.items():
        if not part:
            kind = "validation" if validation else "training"
            raise ConfigError(f"no question is for {kind}", where=str(folder), remedy="add rows")

    def question_of(seed: int) -> Question:
        part = rows[for_validation(seed)]
        for offset in range(len(part)):
            row = part[(seed + offset) % len(part)]
            version = file_version(row.file)
            gold = _gold_result(row, version, limits)
            if gold.rows:
                return _question(row, gold, version)
        raise InfrastructureError(f"{folder}: no gold query has a result")

    return question_of, digests


def _question(row: _Row, gold: Result, version: FileVersion | None) -> Question:
    return Question(
        schema=_schema(row.file, version),
        question=row.question,
        gold=row.gold,
        expected=gold.fingerprint,
        database=Database(path=row.file, dates="clock"),
        where=row.where,
        file_version=version,
    )


_RESULTS: dict[tuple[int, _Row, FileVersion | None, Limits], Future[Result]] = {}
"""A cache of the results of the gold (reference) queries. The key is the process id, the row, the version of
the database file and the limits. A value is a future, so that other threads can wait for a query that still
runs. The process id is in the key because a forked process must not wait for queries of its parent."""
_RESULTS_LOCK = threading.Lock()


def _gold_result(row: _Row, version: FileVersion | None, limits: Limits) -> Result:
    """Returns the result of the gold query (the reference query) of `row` on the present `version` of the
    database. The query runs once per process and version, even if several threads call this function at the
    same time. Raises InfrastructureError if the query failed."""
    key = os.getpid(), row, version, limits
    with _RESULTS_LOCK:
        first = key not in _RESULTS
        future = _RESULTS.setdefault(key, Future())
    if first:
        try:
            result = run(Database(path=row.file, dates="clock"), row.gold, limits)
            if result.unreadable:
                raise InfrastructureError(f"{row.where}: {row.file}: {result.problem}")
            future.set_result(result)
        except BaseException as error:  # the next caller tries again: the query did not cause this
            with _RESULTS_LOCK:
                del _RESULTS[key]
            future.set_exception(error)
            raise
        if not (result.rows or result.problem):
            _LOG.warning("%s: skipped, because its gold query finds nothing", row.where)
    result = future.result()
    if result.problem:
        raise InfrastructureError(
            f"{row.where}: the gold query failed: {result.problem} — correct or remove the row"
        )
    return result


@functools.lru_cache(1000)
def _schema(file: Path, version: FileVersion | None) -> str:
    """Returns the `CREATE TABLE` statements of the database in `file`, whose present version is `version`.
    Raises InfrastructureError if the file cannot be read as a database."""
    uri = f"{file.as_uri()}?mode=ro&immutable=1"
    try:
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
            rows = connection.execute(
                "SELECT sql FROM sqlite_master WHERE type = 'table' AND sql IS NOT NULL"
            ).fetchall()
    except sqlite3.Error as error:
        raise InfrastructureError(f"{file}: {error}") from error
    return "\n".join(f"{sql};" for (sql,) in rows)


def _rows(folder: Path, split: str) -> tuple[list[_Row], str]:
    """Returns the rows of the file `SPLIT.json` in `folder`, where SPLIT is `split` (`dev` or `train`). Also
    returns a digest of this file and of the names and sizes of the databases to which its rows refer. Raises
    MissingError if a file is absent, and ConfigError if a row is malformed."""
    path, databases = folder / f"{split}.json", folder / f"{split}_databases"
    try:
        data = path.read_bytes()
    except OSError:
        raise MissingError(
            "no such file",
            where=str(path),
            remedy="give BIRD's folder, which has dev.json and dev_databases",
        ) from None
    try:
        values = json_lines.decode(data)
    except ValueError as error:
        raise ConfigError(f"no JSON: {error}", where=str(path)) from None
    if not isinstance(values, list):
        raise ConfigError("must be a list of questions", where=str(path))
    rows = [_row(value, f"{path}, row {n}", databases) for n, value in enumerate(values, start=1)]
    files = sorted({row.file for row in rows})
    sizes = "".join(f"{file.name} {file.stat().st_size}\n" for file in files)
    return rows, hashlib.sha256(data + sizes.encode()).hexdigest()


def _row(value: Any, where: str, databases: Path) -> _Row:
    texts = [
        value.get(k) if isinstance(value, dict) else None for k in ("question", "SQL", "db_id")
    ]
    if not all(isinstance(text, str) and text.strip() for text in texts):
        raise ConfigError("the row needs the texts `question`, `SQL` and `db_id`", where=where)
    question, gold, name = map(str, texts)
    if isinstance(number := value.get("question_id"), int | str):
        where = f"{where} (question_id {number})"
    file = databases / name / f"{name}.sqlite"
    if not file.is_file():
        raise MissingError(
            f"there is no database {file}", where=where, remedy="unpack the databases"
        )
    evidence = value.get("evidence")
    hint = f"\nHint: {evidence}" if isinstance(evidence, str) and evidence.strip() else ""
    return _Row(where, question.strip() + hint, gold.strip().rstrip(";"), file)
