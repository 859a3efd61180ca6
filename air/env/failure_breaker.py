"""The failure breaker: stops a run after too many consecutive episodes failed because of the infrastructure.

It also opens at once if something failed that would fail in every episode, such as a reward term of the user.
Failed episodes are not trained on. So the breaker warns if their share rises for one task: an agent may have
found a way to escape bad rewards.

A run's workers cannot stop prime-rl, which started them. So they count consecutive failures in one file,
which `AIR_BREAKER_FILE` names. When the breaker opens, every further episode fails at once with the reason,
and the program that launched the run ends it. Without the variable, each process counts alone, and no run is
ended. The file must be on a file system that all workers share and that supports flock(2).
"""

from __future__ import annotations

import fcntl
import json
import logging
import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO

from air.errors import ConfigError, InfrastructureError, boundary

FILE_ENV = "AIR_BREAKER_FILE"
WINDOW = 32
"""The number of a task's latest episodes that are compared with the same number of episodes before them."""
FEWEST = 4
"""The smallest increase that causes a warning: failures in the last `WINDOW` episodes less those before."""
_FAILED, _WELL = "x", "."
# verifiers' servers show the messages of loggers below their own name.
_LOG = logging.getLogger("verifiers.v1.air.breaker")


@dataclass
class _Count:
    failures: int = 0
    """The number of consecutive episodes, up to the latest, that failed because of the infrastructure."""
    opened: str = ""
    """The reason why the breaker opened, so that the run must stop. Empty while the run may continue."""
    tasks: dict[str, str] = field(default_factory=dict)
    """The last `2 * WINDOW` episodes of each task, as characters: `x` for a failed episode, else a dot. If
    there were fewer episodes, dots come first."""
    rises: int = 0
    """The number of times that a rise of one task's failures was found."""


class Breaker:
    """A counter, shared by all workers, of consecutive episodes that failed because of the infrastructure.
    At `limit` failures (0: never) the breaker opens: from then on no episode may start. `open` opens it too.
    If `file` is None, this process counts alone. All methods block while another process has locked the
    file."""

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

    def ended_well(self, task: str) -> None:
        """Sets the number of failures to 0, after an episode of `task` without an infrastructure failure."""
        self._count("", task)

    def failed(self, error: str, task: str) -> None:
        """Adds 1 to the number of failures, after an infrastructure failure with the text `error`."""
        self._count(error, task)

    def open(self, reason: str) -> None:
        """Opens the breaker at once, whatever the limit. `reason` is one line for the user. If the breaker is
        open already, it keeps its first reason."""
        self._update(lambda count: replace(count, opened=count.opened or reason))

    def _count(self, error: str | None = None, task: str = "") -> _Count:
        """Updates the number of consecutive failures after an episode; returns the new count.
        `error` is the reason of the failure, "" if there was none, or None to read the count only."""
        return self._update(lambda count: self._next(count, error, task), task)

    def _update(self, change: Callable[[_Count], _Count], task: str = "") -> _Count:
        """Replaces the count by `change` of it; logs what the user must know; returns the new count."""
        if self._file is None:
            before, self._own = self._own, change(self._own)
            self._say(before, self._own, task)
            return self._own
        with _open_locked(self._file) as file:
            before = _read(file)
            after = change(before)
            self._say(before, after, task)
            if after != before:
                file.seek(0)
                file.truncate()
                json.dump(asdict(after), file)
            return after

    def _say(self, before: _Count, after: _Count, task: str) -> None:
        if after.opened and not before.opened:
            _LOG.error("%s", after.opened)
        if after.rises > before.rises:
            _LOG.warning(
                "task %s: more of its episodes fail through no fault of the agent than before, and are not "
                "trained on: find out why, since an agent that could cause this would escape bad rewards",
                task,
            )

    def _next(self, count: _Count, error: str | None, task: str) -> _Count:
        if error is None:
            return count
        outcomes = count.tasks.get(task, _WELL * 2 * WINDOW)[1:] + (_FAILED if error else _WELL)
        if rises := is_rising(outcomes):
            outcomes = outcomes[WINDOW:] * 2  # the next comparisons start from this level
        tasks = {**count.tasks, task: outcomes}
        count = replace(count, tasks=tasks, rises=count.rises + rises)
        if count.opened or not self._limit:
            return count
        failures = count.failures + 1 if error else 0
        if failures < self._limit:
            return replace(count, failures=failures)
        return replace(
            count,
            failures=failures,
            opened=f"{failures} episodes in a row failed through no fault of the agent, so the run stops; "
            f"the last one: {' '.join(error.split())[:500]}",
        )


def is_rising(outcomes: str) -> bool:
    """Whether failures rise: more in the second half of a task's last `2 * WINDOW` episodes than in the
    first.

    The difference must exceed chance: the two numbers are compared as Poisson counts, and three standard
    deviations are required.
    """
    before = outcomes[:-WINDOW].count(_FAILED)
    more = outcomes[-WINDOW:].count(_FAILED) - before
    return more >= max(FEWEST, 3 * math.sqrt(before + 1))


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
