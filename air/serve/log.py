"""The log of a server: one JSON object for each line, on standard error. It never contains code, files or
tokens."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, TextIO


class Log:
    """Writes events as lines `{"time": …, "event": …, …}`."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr

    def event(self, event: str, **facts: Any) -> None:
        """Writes one line. Facts that are None are left out."""
        line: dict[str, Any] = {"time": f"{_now()}", "event": event}
        line |= {name: value for name, value in facts.items() if value is not None}
        print(json.dumps(line, ensure_ascii=True, default=str), file=self._stream, flush=True)


class LogHandler(logging.Handler):
    """Passes warnings and errors of air and of the HTTP server on to a `Log`."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        facts = {"error": repr(record.exc_info[1])} if record.exc_info else {}
        self._log.event(
            record.levelname.lower(), logger=record.name, text=record.getMessage(), **facts
        )


def _now() -> str:
    now = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"
