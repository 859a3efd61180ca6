"""The failure breaker: stops a run after too many consecutive episodes failed because of the infrastructure.

A run's workers cannot stop prime-rl, which started them. So they count consecutive failures in one file,
which `AIR_BREAKER_FILE` names. When the breaker opens, every further episode fails at once with the reason,
and the program that launched the run ends it. Without the variable, each process counts alone, and no run is
ended. The file must be on a file system that all workers share and that supports flock(2).
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from air.errors import ConfigError, InfrastructureError, boundary

FILE_ENV = "AIR_BREAKER_FILE"
# verifiers' servers show the messages of loggers below their own name.
_LOG = logging.getLogger("verifiers.v1.air.breaker")


@dataclass
class _Count:
    failures: int = 0
    """The number of consecutive episodes, up to the latest, that failed because of the infrastructure."""
    opened: str = ""
    """Why the breaker opened, so that the run must stop. Empty while the run may continue."""


class Breaker:
    """A counter, shared by all workers, of consecutive episodes that failed because of the infrastructure.
    At `limit` failures (0: never) the breaker opens: from then on no episode may start. If `file` is None,
    this process counts alone. All methods block while another process has locked the file."""

    def __init__(self, limit: int, file: Path | None) -> None:
        self._limit, self._file = limit, file
        self._own = _Count()

    @classmethod
    def of_run(cls, limit: int) -> Breaker:
        """Returns the breaker of the run to which this process belongs; `AIR_BREAKER_FILE` names its file."""
        file = os.environ.get(FILE_ENV)
        return cls(limit, Path(file) if file else None)

    def check(self) -> None:
        """Raises InfrastructureError if the breaker is open, because then no further episode may start."""
        if reason := self._count().opened:
            raise InfrastructureError(reason)

    def ended_well(self) -> None:
        """Sets the number of failures to 0, after an episode without one."""
        self._count("")

    def failed(self, error: str) -> None:
        """Adds 1 to the number of failures, after an infrastructure failure with the text `error`."""
        self._count(error)

    def _count(self, error: str | None = None) -> _Count:
        """Updates the number of consecutive failures after an episode; returns the new count.
        `error` is the reason of the failure, "" if there was none, or None to read the count only."""
        if self._file is None:
            before, self._own = self._own, self._next(self._own, error)
            self._say(before, self._own)
            return self._own
        with _open_locked(self._file) as file:
            before = _read(file)
            after = self._next(before, error)
            self._say(before, after)
            if after != before:
                file.seek(0)
                file.truncate()
                json.dump(asdict(after), file)
            return after

    def _say(self, before: _Count, after: _Count) -> None:
        if after.opened and not before.opened:
            _LOG.error("%s", after.opened)

    def _next(self, count: _Count, error: str | None) -> _Count:
        if error is None or count.opened or not self._limit:
            return count
        failures = count.failures + 1 if error else 0
        if failures < self._limit:
            return _Count(failures)
        return _Count(
            failures,
            f"{failures} episodes in a row failed through no fault of the agent, so the run stops; "
            f"the last one: {' '.join(error.split())[:500]}",
        )


def opened(file: Path) -> str:
    """Returns the reason why the run that uses the breaker file `file` must stop, or "" if it may continue.
    Raises ConfigError if the file cannot be used."""
    if not file.exists():
        return ""
    with _open_locked(file) as stream:
        return _read(stream).opened


def fresh(file: Path) -> dict[str, str]:
    """Removes an earlier run's breaker file, so that a new run begins with no counted failures.
    Returns the environment variable that the new run needs. Raises ConfigError if the file cannot be used."""
    with boundary(ConfigError, f"cannot use {file}", OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
    return {FILE_ENV: str(file.absolute())}


def _open_locked(file: Path) -> IO[str]:
    """Opens the breaker file, waits for its lock, and returns the open file. Closing it releases the lock."""
    with boundary(ConfigError, f"{FILE_ENV}: cannot use {file}", OSError):
        stream = file.open("a+", encoding="utf-8")
        fcntl.flock(stream, fcntl.LOCK_EX)
        stream.seek(0)
        return stream


def _read(file: IO[str]) -> _Count:
    text = file.read()
    with boundary(ConfigError, f"{FILE_ENV}: {file.name} is no breaker's", ValueError, TypeError):
        return _Count(**json.loads(text)) if text else _Count()
