"""The failure breaker: a circuit breaker that stops a run after too many consecutive episodes with
infrastructure errors.

It also opens (stops the run) at once if something of the user failed that would fail in further episodes: a
reward term, an answer checker, a tool that hangs, or the tests of a task. Failed episodes are not trained on.
So the breaker warns if the share of failures rises for one task: an agent might have found a way to cause
failures, and thereby avoid bad rewards.

The worker processes of a run cannot stop prime-rl, which started them. So they count consecutive failures in
one shared file, whose path is in the environment variable `AIR_BREAKER_FILE`. When the breaker opens, every
further episode fails at once with the reason, and the program that launched the run ends it. Without the
variable, each process counts alone, and no run is ended. The file must be on a file system that all workers
share and that supports flock(2).
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
"""The number of latest episodes of a task whose failures are compared with those of as many episodes
before."""
FEWEST = 4
"""The smallest increase in the number of failures, between the two windows of episodes, that causes a
warning."""
_FAILED, _WELL = "x", "."
# verifiers' servers show the messages of loggers below their own name.
_LOG = logging.getLogger("verifiers.v1.air.breaker")


@dataclass
class _Count:
    failures: int = 0
    """The number of consecutive episodes, up to the latest, with an infrastructure error."""
    opened: str = ""
    """The reason why the breaker opened and the run must stop. Empty while the run may continue."""
    tasks: dict[str, str] = field(default_factory=dict)
    """The last `2 * WINDOW` episodes of each task, oldest first, as characters: `x` for a failed episode,
    else a dot. If there were fewer episodes, the text begins with further dots."""
    rises: int = 0
    """The number of warnings so far that the failures of some task rise."""


class Breaker:
    """Counts consecutive episodes with infrastructure errors, over all worker processes of a run. When the
    count reaches `limit` (0: never), or at a call of `open`, the breaker opens: no further episode may start.
    If `file` is None, only this process is counted. All methods block while another process holds the lock on
    the file."""

    def __init__(self, limit: int, file: Path | None) -> None:
        self._limit, self._file = limit, file
        self._own = _Count()

    @classmethod
    def of_run(cls, limit: int) -> Breaker:
        """Returns the breaker of the run to which this process belongs. The environment variable
        `AIR_BREAKER_FILE` contains the path of its file."""
        file = os.environ.get(FILE_ENV)
        return cls(limit, Path(file) if file else None)

    def check(self) -> None:
        """Raises InfrastructureError if the breaker is open, so that no further episode starts."""
        if reason := self._count().opened:
            raise InfrastructureError(reason)

    def ended_well(self, task: str) -> None:
        """Resets the count of consecutive failures, after an episode of `task` without an infrastructure
        error."""
        self._count("", task)

    def failed(self, error: str, task: str) -> None:
        """Counts an episode of `task` with an infrastructure error, whose message is `error`."""
        self._count(error, task)

    def open(self, reason: str) -> None:
        """Opens the breaker at once, regardless of the limit. `reason` is one line for the user. If the
        breaker is open already, the earlier reason stays."""
        self._update(lambda count: replace(count, opened=count.opened or reason))

    def _count(self, error: str | None = None, task: str = "") -> _Count:
        """Updates the stored counts of failures after an episode of `task`, and returns them. `error` is the
        message of the episode's infrastructure error, or "" if it had none. If `error` is None, no episode
        has ended, and the stored counts are only returned."""
        return self._update(lambda count: self._next(count, error, task), task)

    def _update(self, change: Callable[[_Count], _Count], task: str = "") -> _Count:
        """Applies the function `change` to the stored counts of failures, stores the result, and returns it.
        Logs the opening of the breaker, and a warning if the failures of `task` rise."""
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
    """Whether a task's failures rise: whether the second half of its last `2 * WINDOW` episodes has more
    failures than the first half.

    The difference must exceed chance: at least `FEWEST`, and three standard deviations if the number of
    failures in each half is Poisson-distributed.
    """
    before = outcomes[:-WINDOW].count(_FAILED)
    more = outcomes[-WINDOW:].count(_FAILED) - before
    return more >= max(FEWEST, 3 * math.sqrt(before + 1))


def opened(file: Path) -> str:
    """Returns the reason why the run with this breaker file must stop, or "" if it may continue. Raises
    ConfigError if the file cannot be used."""
    if not file.exists():
        return ""
    with _open_locked(file) as stream:
        return _read(stream).opened


def fresh(file: Path) -> dict[str, str]:
    """Deletes the breaker file of an earlier run, so that a new run starts without failures. Returns the
    environment variable that the new run's processes need. Raises ConfigError if the file cannot be used."""
    with boundary(ConfigError, f"cannot use {file}", OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
    return {FILE_ENV: str(file.absolute())}


def _open_locked(file: Path) -> IO[str]:
    """Opens the breaker file, waits for its lock, and returns the open file. Closing the file releases the
    lock."""
    with boundary(ConfigError, f"{FILE_ENV}: cannot use {file}", OSError):
        stream = file.open("a+", encoding="utf-8")
        fcntl.flock(stream, fcntl.LOCK_EX)
        stream.seek(0)
        return stream


def _read(file: IO[str]) -> _Count:
    text = file.read()
    with boundary(ConfigError, f"{FILE_ENV}: {file.name} is no breaker's", ValueError, TypeError):
        return _Count(**json.loads(text)) if text else _Count()
