"""The worker program that runs the agent's SQL in a separate process, one query at a time. It does not
import air.

Each line of standard input is a request, and each line of standard output its response, both as JSON.
SQLite's authorizer allows a query to read tables and to call functions, and nothing else: no writes, no
PRAGMA, no ATTACH, no extensions, no random functions. The request's `dates` selects the date and time
functions that are allowed: "clock" all of them, "fixed" only those that do not depend on the clock or the
time zone of this machine, "none" none of them. A query is stopped at the first limit that it reaches:

- `steps` of SQLite's virtual machine. This limit is exact: it does not depend on the machine or its load.
- `seconds` of CPU time, for functions that never return to the virtual machine. This limit ends the process.
- memory: SQLite's heap and the process's address space. The process can write no file.
- `rows` and `bytes` of the result.

A query is also stopped if the parent of this process ends.

The response contains a fingerprint of the result, which is equal for two results with the same rows in any
order. For a request with `show`, the response contains the first rows instead, at most that many, with all
cells as strings.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import resource
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterable
from typing import Any

HEAP_BYTES = 256 * 2**20
ADDRESS_BYTES = 2**30
OUT_OF_MEMORY = 77
"""The exit status if a query needs more memory than its limit."""
_STEPS_BETWEEN_LOOKS = 10_000
_LONGEST_CELL = 200
_MOST_SHOWN = 1_000_000
"""The size limit of a response that shows rows: once its cells have this many characters together, no further
row is added. This limits memory, because the parent process reads the whole response at once."""
_ALLOWED = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}
_FORBIDDEN_FUNCTIONS = {"load_extension", "fts3_tokenizer", "random", "randomblob"}
_CLOCK_FUNCTIONS = {
    "current_date",
    "current_time",
    "current_timestamp",
    "date",
    "datetime",
    "julianday",
    "strftime",
    "time",
    "timediff",
    "unixepoch",
}
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 10_000_000,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 100_000,
    sqlite3.SQLITE_LIMIT_COLUMN: 1000,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 200,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 100,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 250_000,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 1000,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 0,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
_UNREADABLE = {
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_NOTADB,
}
"""SQLite's (primary) error codes for a database that is lost or damaged."""
_NOW = ("now", "subsec", "subsecond")
_ZONES = ("localtime", "utc")


class _LimitReached(Exception):
    """Raised if a query's result exceeds a limit, or if the SQL statement gives no table. The agent sees the
    exception's message."""


def main() -> None:
    """Answers requests until the end of standard input."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES, ADDRESS_BYTES))
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C is for the parent, which ends this process
    for line in sys.stdin.buffer:
        try:
            request = json.loads(line)
            signal.setitimer(signal.ITIMER_PROF, request["seconds"])
            reply = json.dumps(answer(request)).encode()
            signal.setitimer(signal.ITIMER_PROF, 0)
        except MemoryError:
            sys.exit(OUT_OF_MEMORY)
        sys.stdout.buffer.write(reply + b"\n")
        sys.stdout.buffer.flush()


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Runs the query of a request and returns the response. Its keys are `fingerprint` and `rows` (the number
    of rows). For a request with `show`, they are `columns`, `cells` (the first rows) and `more` (whether
    further rows exist). If the query fails, the keys are `problem` and, if the database cannot be read,
    `unreadable`."""
    try:
        connection = _connect(request)
    except sqlite3.Error as error:
        return _failure(str(error), error)
    refused: list[str] = []
    try:
        if request["dates"] == "fixed":
            _fix_dates(connection, refused)
        _guard(connection, request)
        cursor = connection.execute(request["sql"])
        if "show" in request:
            return _shown(cursor, request["show"])
        rows = _rows(cursor, request["rows"], request["bytes"])
        return {"fingerprint": fingerprint(rows), "rows": len(rows)}
    except _LimitReached as error:
        return {"problem": str(error)}
    except sqlite3.OperationalError as error:
        interrupted = str(error) == "interrupted"
        problem = refused[0] if refused else str(error)
        return _failure("the query takes too long" if interrupted else problem, error)
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
        return _failure(str(error) or type(error).__name__, error)
    finally:
        connection.close()


def _failure(problem: str, error: Exception) -> dict[str, Any]:
    """Returns the response to a query that failed with `error`. `problem` is the message for the agent."""
    code = getattr(error, "sqlite_errorcode", None) or 0
    return {"problem": problem} | ({"unreadable": True} if code & 0xFF in _UNREADABLE else {})


def fingerprint(rows: Iterable[tuple[Any, ...]]) -> str:
    """Returns a digest of a query's rows, as a string. The order of the rows does not matter, but the number
    of equal rows does.

    Numbers are compared by value: 2 equals 2.0, and floats are rounded to nine significant digits, so that
    the order of summation in a query does not matter. A number never equals a string.
    """
    texts = sorted(repr(tuple(map(_canonical, row))) for row in rows)
    return hashlib.sha256("\n".join(texts).encode("utf-8", "surrogatepass")).hexdigest()


def _canonical(value: Any) -> Any:
    if not isinstance(value, float) or value != value or abs(value) == float("inf"):
        return value
    rounded = float(f"{value:.9g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 2**63 else rounded


def _connect(request: dict[str, Any]) -> sqlite3.Connection:
    if "uri" in request:
        connection = sqlite3.connect(request["uri"], uri=True, isolation_level=None)
    else:
        connection = sqlite3.connect(":memory:", isolation_level=None)
        connection.deserialize(base64.b64decode(request["image"]))
    connection.text_factory = lambda data: data.decode("utf-8", "replace")
    return connection


def _fix_dates(connection: sqlite3.Connection, refused: list[str]) -> None:
    """Replaces SQLite's date functions by functions that fail if they would need the clock or the time zone.
    A replacement that fails appends the reason to the list `refused`."""
    inner = sqlite3.connect(":memory:")
    inner.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LIMITS[sqlite3.SQLITE_LIMIT_LENGTH])
    known = {name for (name,) in inner.execute("SELECT name FROM pragma_function_list")}
    for name in _CLOCK_FUNCTIONS & known:
        if not name.startswith("current_"):
            connection.create_function(name, -1, _fixed(name, inner, refused), deterministic=True)


def _fixed(name: str, inner: sqlite3.Connection, refused: list[str]) -> Callable[..., Any]:
    """Returns a function that replaces SQLite's date function `name`. It fails if its arguments ask for the
    present time or the time zone, such as 'now', and then appends the reason to `refused`; otherwise it calls
    the original function in the database `inner`."""
    first = 1 if name == "strftime" else 0
    times = 2 if name == "timediff" else 1

    def function(*values: Any) -> Any:
        texts = [_word(value) for value in values]
        moments, changes = texts[first : first + times], texts[first + times :]
        if len(moments) < times or any(each in _NOW for each in moments):
            refused.append(f"{name}() must not ask for the present time: name a date")
        elif any(each in _ZONES for each in changes):
            refused.append(f"{name}() must not use the time zone of this machine")
        if refused:
            raise ValueError(refused[0])
        marks = ",".join("?" * len(values))
        return inner.execute(f"SELECT {name}({marks})", values).fetchone()[0]

    return function


def _word(value: Any) -> str:
    """Returns a function argument in the form in which SQLite compares it with keywords such as 'now': its
    text up to the first zero byte, in lower case."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return text.partition("\0")[0].lower()


def _guard(connection: sqlite3.Connection, request: dict[str, Any]) -> None:
    """Restricts what queries on `connection` can do: sets the limits that SQLite enforces, and then installs
    the authorizer, a function that allows only reading. The authorizer comes last, because it forbids the
    PRAGMA statements that set limits."""
    for pragma in (
        f"hard_heap_limit={HEAP_BYTES}",
        "temp_store=MEMORY",
        "query_only=ON",
        # A view of the file may call the functions of `_fix_dates`.
        f"trusted_schema={'ON' if request['dates'] == 'fixed' else 'OFF'}",
    ):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    for limit, most in _LIMITS.items():
        connection.setlimit(limit, most)
    looks: int = request["steps"] // _STEPS_BETWEEN_LOOKS

    def must_end() -> bool:
        nonlocal looks
        looks -= 1
        return looks < 0 or os.getppid() != request["parent"]

    connection.set_progress_handler(must_end, _STEPS_BETWEEN_LOOKS)
    connection.set_authorizer(_authorizer(request["dates"]))


def _authorizer(dates: str) -> Callable[..., int]:
    of_dates = {
        "clock": set[str](),
        "fixed": {name for name in _CLOCK_FUNCTIONS if name.startswith("current_")},
        "none": _CLOCK_FUNCTIONS,
    }
    forbidden = _FORBIDDEN_FUNCTIONS | of_dates[dates]

    def authorize(action: int, first: str | None, second: str | None, *others: str | None) -> int:
        if action not in _ALLOWED:
            return sqlite3.SQLITE_DENY
        if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in forbidden:
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

    return authorize


def _rows(cursor: sqlite3.Cursor, most_rows: int, most_bytes: int) -> list[tuple[Any, ...]]:
    if cursor.description is None:
        raise _LimitReached("the query gives no table")
    rows: list[tuple[Any, ...]] = []
    size = 0
    for row in cursor:
        size += sum(len(v) if isinstance(v, str | bytes) else 8 for v in row)
        if len(rows) >= most_rows:
            raise _LimitReached(f"the result has more than {most_rows} rows")
        if size > most_bytes:
            raise _LimitReached(f"the result has more than {most_bytes} bytes")
        rows.append(row)
    return rows


def _shown(cursor: sqlite3.Cursor, most_rows: int) -> dict[str, Any]:
    if cursor.description is None:
        raise _LimitReached("the query gives no table")
    cells: list[list[str]] = []
    room = _MOST_SHOWN
    while len(cells) < most_rows and room > 0 and (row := cursor.fetchone()) is not None:
        cells.append([_cell(value) for value in row])
        room -= sum(map(len, cells[-1]))
    return {
        "columns": [_cell(column[0]) for column in cursor.description],
        "cells": cells,
        "more": cursor.fetchone() is not None,
    }


def _cell(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    text = str(value)
    if len(text) > _LONGEST_CELL:
        text = f"{text[:_LONGEST_CELL]}… ({len(text)} characters)"
    return "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text)


if __name__ == "__main__":
    main()
