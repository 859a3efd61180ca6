"""The failure breaker: stops a run after too many consecutive infrastructure failures.

Workers cannot stop prime-rl. So all workers of a run count consecutive failures in one file, which
`AIR_BREAKER_FILE` names. After too many the breaker opens: every further episode fails at once with the
reason, and the launcher, which watches the file (`opened`), ends the run. Without the file each process
counts alone, and no run is ended.

The file must be on a file system that all workers share and that supports flock(2). An open breaker stays
open until a launcher resets it (`fresh`).
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
_LOG = logging.getLogger(
    "verifiers.v1.air.breaker"
)  # verifiers' servers show what is below this name


@dataclass
class _Count:
    failures: int = 0
    """Failures since the last episode that ended well."""
    opened: str = ""
    """Why the run must stop; empty while it may continue."""


class Breaker:
    """Counts the consecutive failures of episodes.

    Args:
        limit: consecutive failures that open the breaker; 0: it never opens.
        file: the counter that the run's workers share; None: this process counts alone.
    """

    def __init__(self, limit: int, file: Path | None) -> None:
        self._limit, self._file = limit, file
        self._own = _Count()

    @classmethod
    def of_run(cls, limit: int) -> Breaker:
        """The breaker of the run that this process works for; see `FILE_ENV`."""
        file = os.environ.get(FILE_ENV)
        return cls(limit, Path(file) if file else None)

    def check(self) -> None:
        """Checks that the run may continue. Blocks on the file, as the other methods do.

        Raises:
            InfrastructureError: the breaker is open.
        """
        if reason := self._count().opened:
            raise InfrastructureError(reason)

    def ended_well(self) -> None:
        """Counts an episode without an infrastructure failure: the count restarts at 0."""
        self._count("")

    def failed(self, error: str) -> None:
        """Counts a failed episode and keeps its error."""
        self._count(error)

    def _count(self, error: str | None = None) -> _Count:
        """Returns the count after an episode with this `error` (empty: it ended well; None: no episode)."""
        if self._file is None:
            before, self._own = self._own, self._next(self._own, error)
            self._say(before, self._own)
            return self._own
        with _held(self._file) as file:
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
    """Returns why the run of this file must stop; empty while it may continue. For launchers.

    Raises:
        ConfigError: the file cannot be used.
    """
    if not file.exists():
        return ""
    with _held(file) as held:
        return _read(held).opened


def fresh(file: Path) -> dict[str, str]:
    """Resets the breaker of a new run; returns the environment variables that its processes need."""
    with boundary(ConfigError, f"cannot use {file}", OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
    return {FILE_ENV: str(file.absolute())}


def _held(file: Path) -> IO[str]:
    """Opens the file, locked until it is closed."""
    with boundary(ConfigError, f"{FILE_ENV}: cannot use {file}", OSError):
        held = file.open("a+", encoding="utf-8")
        fcntl.flock(held, fcntl.LOCK_EX)
        held.seek(0)
        return held


def _read(file: IO[str]) -> _Count:
    text = file.read()
    with boundary(ConfigError, f"{FILE_ENV}: {file.name} is no breaker's", ValueError, TypeError):
        return _Count(**json.loads(text)) if text else _Count()
