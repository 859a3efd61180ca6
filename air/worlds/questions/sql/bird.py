"""Reads SQL questions from a user's copy of the BIRD dataset: `dev.json` with `dev_databases`, and
optionally `train.json` with `train_databases`.

Validation seeds use `dev.json`; training seeds use `train.json`. Without `train.json`, about four fifths of
the rows of `dev.json` are for training seeds and the rest for validation seeds. Consecutive seeds use all
rows of their split before any row is repeated. A row whose gold query has an empty result is skipped in
favour of the next row, because any query without results would match it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from air.errors import ConfigError, InfrastructureError, MissingError
from air.tools.sql.runner import Database, Limits, Result, run
from air.worlds.questions.episodes import belongs, for_validation
from air.worlds.questions.sql.questions import Question, Questions

LIMITS = Limits(steps=20_000_000_000, seconds=180.0, rows=1_000_000, bytes=64_000_000)
"""The limits of one query on a BIRD database. GRL, the project on whose agents these question worlds are
modelled, allows 180 seconds as well."""


@dataclass(frozen=True)
class _Row:
    """A row of BIRD's question file, with the row's location for error messages."""

    where: str
    question: str
    gold: str
    file: Path
    """The path of the SQLite database that the question is about."""


def from_folder(folder: Path) -> tuple[Questions, str]:
    """Returns a function from a seed to a question in a BIRD folder, and a digest of the contents of its
    question files and of the names and sizes of its databases. Raises MissingError if a file is absent, and
    ConfigError if a row is malformed or a split has no rows."""
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
            gold = _run_gold(row.file, row.gold, row.where)
            if gold.rows:
                return _question(row, gold)
        raise InfrastructureError(f"{folder}: no gold query has a result")

    return question_of, digests


def _question(row: _Row, gold: Result) -> Question:
    return Question(
        schema=_schema(row.file),
        question=row.question,
        gold=row.gold,
        expected=gold.fingerprint,
        database=Database(path=row.file, dates="clock"),
    )


@functools.lru_cache(20_000)
def _run_gold(file: Path, gold: str, where: str) -> Result:
    result = run(Database(path=file, dates="clock"), gold, LIMITS)
    if result.problem:
        raise InfrastructureError(f"{where}: the gold query failed: {result.problem}")
    return result


@functools.lru_cache(1000)
def _schema(file: Path) -> str:
    """Returns the `CREATE TABLE` statements of the database in `file`. Raises InfrastructureError if the file
    cannot be read as a database."""
    connection = sqlite3.connect(f"{file.as_uri()}?mode=ro&immutable=1", uri=True)
    try:
        rows = connection.execute(
            "SELECT sql FROM sqlite_master WHERE type = 'table' AND sql IS NOT NULL"
        ).fetchall()
    except sqlite3.Error as error:
        raise InfrastructureError(f"{file}: {error}") from error
    finally:
        connection.close()
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
        values = json.loads(data)
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
    file = databases / name / f"{name}.sqlite"
    if not file.is_file():
        raise MissingError(
            f"there is no database {file}", where=where, remedy="unpack the databases"
        )
    evidence = value.get("evidence")
    hint = f"\nHint: {evidence}" if isinstance(evidence, str) and evidence.strip() else ""
    return _Row(where, question.strip() + hint, gold.strip().rstrip(";"), file)
