"""Writes the log of a server of `air serve`: one JSON object per line, by default on standard error. The log
never contains code, file contents or tokens."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, TextIO

from starlette.types import Scope


class Log:
    """Writes the lines of a server's log, in the form `{"time": …, "event": …, …}`, to `stream` (None:
    standard error)."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr

    def event(self, event: str, **fields: Any) -> None:
        """Writes one log line with the name of an event and `fields`. Fields with the value None are left
        out."""
        line: dict[str, Any] = {"time": f"{_now()}", "event": event}
        line |= {name: value for name, value in fields.items() if value is not None}
        print(json.dumps(line, ensure_ascii=True, default=str), file=self._stream, flush=True)

    def request(self, scope: Scope, status: int, seconds: float, **fields: Any) -> None:
        """Writes one log line about a request that has been answered. `scope` is the request's ASGI scope,
        `status` the HTTP status, `seconds` the duration, and `fields` are further facts that the request's
        handler wants in the line."""
        self.event(
            "request",
            method=scope.get("method"),
            path=scope["path"],
            status=status,
            seconds=round(seconds, 4),
            **fields,
        )


class LogHandler(logging.Handler):
    """Handler for Python's module `logging` that writes warnings and errors to a server's `Log`."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        fields = {"error": repr(record.exc_info[1])} if record.exc_info else {}
        self._log.event(
            record.levelname.lower(), logger=record.name, text=record.getMessage(), **fields
        )


def _now() -> str:
    now = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"
