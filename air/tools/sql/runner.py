"""Runs SQL queries on SQLite databases in worker processes (`worker.py`), each of which serves many queries,
and decides whether a failure is the query's fault.

A failure that a query causes is a `Result` with a `problem`: an error, an exceeded limit, or a crash of the
process. If the process fails in another way, for example because the machine runs out of memory, a harmless
query is tried, and then the original query again. If the harmless query fails too, InfrastructureError is
raised. If the harmless query succeeds and the original query fails again, the original query is at fault.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import json
import logging
import os
import select
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from air.errors import InfrastructureError
from air.tools.sql import worker

_LOG = logging.getLogger(__name__)
_PATIENCE = 30
"""The wall-time limit of a query as a multiple of its CPU-time limit. It is high, because queries are slow on
a loaded machine."""
_CRASHES = {-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT, -signal.SIGFPE, -signal.SIGILL}


@dataclass(frozen=True)
class Limits:
    """The limits of one SQL query: the number of steps of SQLite's virtual machine (`steps`), the CPU time in
    seconds (`seconds`), and the size of the result in rows and in bytes."""

    steps: int = 50_000_000
    seconds: float = 10.0
    rows: int = 10_000
    bytes: int = 4_000_000


@dataclass(frozen=True)
class Database:
    """A SQLite database: the file `path` or, if that is None, `image`, the serialized content of an in-memory
    database."""

    image: bytes = b""
    path: Path | None = None
    dates: Literal["none", "fixed", "clock"] = "none"
    """The date and time functions that queries may use. `none`: no such function. `fixed`: those that do not
    read the clock. `clock`: all of them, so that results may change from day to day."""

    def request(self) -> dict[str, Any]:
        """Returns the fields of a request to a worker process that say which database a query reads (`uri` or
        `image`), and which date functions it may use (`dates`)."""
        if self.path is None:
            return {"image": base64.b64encode(self.image).decode(), "dates": self.dates}
        return {"uri": f"{self.path.as_uri()}?mode=ro&immutable=1", "dates": self.dates}


@dataclass(frozen=True)
class Result:
    """The result of a query whose rows are only to be compared with those of another query: a digest
    (fingerprint) and the number of the rows, without the rows themselves."""

    fingerprint: str = ""
    """A digest of the rows, regardless of their order; empty if the query failed."""
    rows: int = 0
    """The number of rows of the result; 0 if the query failed."""
    problem: str = ""
    """The reason why the query failed; empty if it succeeded."""
    unreadable: bool = False
    """Whether the query failed because the database is lost or damaged."""


@dataclass(frozen=True)
class Table:
    """The first rows of a query's result, with all cells as strings, to be shown to the model."""

    columns: list[str] = field(default_factory=list)
    cells: list[list[str]] = field(default_factory=list)
    more: bool = False
    """Whether the result has further rows."""
    problem: str = ""
    """The reason why the query failed; empty if it succeeded."""


def run(database: Database, sql: str, limits: Limits) -> Result:
    """Runs the query `sql` on `database` within `limits`, and returns a digest (fingerprint) of the result's
    rows and their number. If the query failed, the field `problem` of the result says why. Blocks until the
    query has ended. Raises InfrastructureError for a failure that the query did not cause."""
    return Result(**_ask(database, sql, limits))


def table(database: Database, sql: str, limits: Limits, most_rows: int) -> Table:
    """Runs the query `sql` on `database` within `limits`, and returns the first `most_rows` rows of its
    result. If the query failed, the field `problem` of the result says why. Blocks until the query has ended.
    Raises InfrastructureError for a failure that the query did not cause."""
    reply = _ask(database, sql, limits, show=most_rows)
    reply.pop("unreadable", None)
    return Table(**reply)


def _ask(database: Database, sql: str, limits: Limits, **more: int) -> dict[str, Any]:
    """Runs a query in a worker process and returns the process's response, a JSON object; `more` are further
    fields of the request. If the process fails and the query is not clearly the cause, tries a harmless
    query, and then the first query again. Raises InfrastructureError only if the harmless query fails too."""
    given = {**database.request(), "sql": sql, **more}
    try:
        return _answered(given, limits)
    except InfrastructureError as error:
        failure = error
    _answered(_harmless(), Limits())
    try:
        return _answered(given, limits)
    except InfrastructureError:
        _LOG.warning("a query counts as failed, since its process fails again: %s", failure)
        return {"problem": "the query ends its process"}


def _harmless() -> dict[str, Any]:
    """Returns the fields of a request with a query at which no working worker process fails. If a process
    fails at it, the machine is the cause."""
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE numbers (number INTEGER)")
        return {**Database(connection.serialize()).request(), "sql": "SELECT 1"}


def _answered(given: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    request = {**given, **vars(limits), "parent": os.getpid()}
    process = _idle_worker()
    try:
        line = process.ask(json.dumps(request).encode(), limits.seconds * _PATIENCE)
    except BaseException:  # interrupts too: its late reply would answer the next request
        process.close()
        raise
    if line is None:
        return {"problem": _ended(process.close())}
    _idle().append(process)
    reply: dict[str, Any] = json.loads(line)
    return reply


_workers: dict[int, list[_Worker]] = {}
"""The idle worker processes. The key is the id of the process that started them, because a process that was
forked inherits this table but must not use its parent's workers."""


class _Worker:
    """A process that runs `worker.py`."""

    def __init__(self) -> None:
        keep = ("LD_LIBRARY_PATH", "PATH")
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", worker.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={name: os.environ[name] for name in keep if name in os.environ},
                bufsize=0,
            )
        except OSError as error:
            raise InfrastructureError(f"no process for a query: {error}") from error

    def ask(self, request: bytes, patience: float) -> bytes | None:
        """Sends a request and returns the response, or None if the process ended instead. Raises
        InfrastructureError if no response comes within `patience` seconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            _send(self._process.stdin.fileno(), request + b"\n")
        reader = self._process.stdout.fileno()
        poll = select.poll()
        poll.register(reader, select.POLLIN)
        deadline, reply = time.monotonic() + patience, b""
        while not reply.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                raise InfrastructureError(f"no result of a query after {patience:g} seconds")
            data = os.read(reader, 65536)
            if not data:
                return None
            reply += data
        return reply

    def close(self) -> int:
        """Closes the worker's pipes, kills the process if it does not end within half a second, and returns
        the exit status."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        try:
            return self._process.wait(0.5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def _send(pipe: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(pipe, view) :]


def _idle() -> list[_Worker]:
    return _workers.setdefault(os.getpid(), [])


def _idle_worker() -> _Worker:
    try:
        return _idle().pop()
    except IndexError:
        return _Worker()


def _ended(status: int) -> str:
    """Returns the message for a query at which its worker process ended with the exit status `status`, such
    as "the query takes too long". Raises InfrastructureError if the status shows that the query was not the
    cause."""
    if status == -signal.SIGPROF:
        return "the query takes too long"
    if status == worker.OUT_OF_MEMORY:
        return "the query takes too much memory"
    if status in _CRASHES:
        return "the query made SQLite crash"
    raise InfrastructureError(f"the process of a query ended with status {status}")


@atexit.register
def _close_workers() -> None:
    while _idle():
        _idle().pop().close()
