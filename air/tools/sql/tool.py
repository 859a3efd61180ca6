"""The tool `sql`: the agent runs a read-only query on a SQLite file and sees the rows of the result.

The run file (the settings of a run) names the SQLite file (`database`), or the field of the dataset rows that
contains its path (`field`). Queries run in worker processes with limits (`worker.py`). They can read this
database, but no other file and not the clock, so that a replay of the episode gives the same results.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field, model_validator

from air.errors import ConfigError, MissingError
from air.tools.base import Reply, Tool, ToolContext, ToolError, tool
from air.tools.load import ToolSettings
from air.tools.sql.runner import Database, Limits, Table, table

_LIMITS = Limits(seconds=5.0)
_LONGEST_PROBLEM = 300
_SECONDS = 120.0
"""The wall-time limit of a call in seconds, sufficient for a loaded machine. The limits of a query are much
lower."""


class SqlSettings(ToolSettings):
    """The settings of the tool `sql`."""

    database: Path | None = None
    """The SQLite file that all episodes read. None if `field` is set. A relative path, also one in a dataset
    row, is relative to the folder of the run file."""
    field: str = ""
    """The name of the field of a dataset row that contains the path of that row's SQLite file. It is used
    instead of `database`. Empty if `database` is set."""
    rows: int = Field(50, ge=1, le=1000)
    """The maximum number of rows of a result that the agent sees."""

    @model_validator(mode="after")
    def _one_file(self) -> SqlSettings:
        if (self.database is None) == (not self.field):
            raise ValueError(
                'set `database = "my.sqlite"`, or `field` with the name of a field of the rows'
            )
        return self

    def tools(self, folder: Path) -> Sequence[Tool]:
        fixed = _file(folder / self.database, "tool 'sql'") if self.database is not None else None

        def database(context: ToolContext) -> Database:
            file = fixed or _file(folder / self._named(context), f"field `{self.field}` of a row")
            return Database(path=file, dates="fixed")

        @tool(state=database, seconds=_SECONDS, calls_at_once=os.cpu_count() or 1)
        def sql(database: Database, query: str) -> Reply:
            """Runs one SQLite query that reads the database, and shows the rows of its result. The tables are
            described in sqlite_master.

            Args:
                query: the query, such as SELECT name FROM sqlite_master
            """
            return _reply(table(database, query, _LIMITS, self.rows))

        return [sql.with_digest(_digest(fixed))]

    def _named(self, context: ToolContext) -> str:
        name = context.fields.get(self.field)
        if not isinstance(name, str) or not name:
            message = f"a row has no text in the field `{self.field}`"
            raise ConfigError(message, where="tool 'sql'", remedy="name its SQLite file there")
        return name


def _file(path: Path, where: str) -> Path:
    path = path.expanduser().resolve()
    if not path.is_file():
        raise MissingError(f"there is no file {path}", where=where, remedy="check the path")
    with path.open("rb") as file:
        if file.read(16) != b"SQLite format 3\x00":
            raise ConfigError(f"{path} is no SQLite file", where=where)
    return path


def _digest(file: Path | None) -> str:
    if file is None:
        return ""
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def _reply(result: Table) -> Reply:
    if result.problem:
        problem = "".join(letter if letter.isprintable() else "?" for letter in result.problem)
        raise ToolError(f"SQL error: {problem[:_LONGEST_PROBLEM]}")
    count = len(result.cells)
    rows = "1 row" if count == 1 else f"{count} rows"
    note = f"(the first {rows}; there are more)" if result.more else f"({rows})"
    lines = [" | ".join(cells) for cells in (result.columns, *result.cells)]
    return Reply("\n".join([*lines, note]), info={"rows": count, "more": result.more})
