"""The failure breaker: a circuit breaker that stops a run after too many episodes with infrastructure
errors.

In this module, a failure is an episode with an infrastructure error, which is an error of air or the machine
and not of the agent. The breaker opens (stops the run) after `limit` consecutive failures of all tasks
together or of one task. It opens at once if something of the user fails that would also fail in all further
episodes: a reward term, an answer checker, a tool whose calls hang, or the tests of a task.

Failed episodes are not trained on, so an agent that can cause failures avoids bad rewards. Therefore the
breaker also keeps, for each task, a count of failures at actions, that is, while an action of the agent was
carried out. Each of them adds 1 to the count, and each other episode of the task subtracts `FORGIVEN`. When
the count reaches `limit`, the breaker opens. So one outage does not stop a run, but a task stops the run if
its episodes keep failing at actions. The breaker also warns if the failures of a task become more frequent.

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
from typing import IO, TypeVar

from air.errors import ConfigError, InfrastructureError, boundary

FILE_ENV = "AIR_BREAKER_FILE"
WINDOW = 32
"""To warn of a rise, the failure breaker counts the failures in the latest `WINDOW` episodes of a task, and
compares them with those in the `WINDOW` episodes before."""
FEWEST = 4
"""A warning needs at least this increase in the number of failures of a task, from `WINDOW` episodes to the
next `WINDOW` episodes."""
FORGIVEN = 0.1
"""The amount by which an episode without a failure at an action lowers its task's count of such failures. (A
failure at an action occurs while an action of the agent is carried out.) Each such failure raises the count
by 1, so the count keeps growing if more than 1 of 11 episodes have such a failure."""
_FAILED, _WELL = "x", "."
# verifiers' servers show the messages of loggers below their own name.
_LOG = logging.getLogger("verifiers.v1.air.breaker")


@dataclass
class _Count:
    failures: int = 0
    """The number of consecutive episodes with an infrastructure error, up to and including the latest
    episode of the run."""
    opened: str = ""
    """The reason why the breaker opened and the run must stop. Empty while the run may continue."""
    tasks: dict[str, str] = field(default_factory=dict)
    """The last `2 * WINDOW` episodes of each task, oldest first, as characters: `x` for a failed episode,
    else a dot. If there were fewer episodes, the text begins with further dots."""
    rises: int = 0
    """The number of warnings so far that failures of a task become more frequent."""
    in_a_row: dict[str, int] = field(default_factory=dict)
    """For each task, the number of consecutive episodes with an infrastructure error, up to and including its
    latest episode. Tasks with the number 0 are left out."""
    at_actions: dict[str, float] = field(default_factory=dict)
    """For each task, the count of failures that occurred while an action was carried out, reduced by
    `FORGIVEN` for each other episode. Tasks with a count of 0 are left out."""


class Breaker:
    """Stops a run after too many episodes with infrastructure errors, which are not the agent's fault: the
    breaker opens, and no further episode may start. It opens when `open` is called, or when a count reaches
    `limit` (0: never). The counts are: the consecutive failures of all tasks together and of each task; and,
    for each task, a number that each failure while an action was carried out raises by 1, and each other
    episode lowers. The processes of the run share the counts in `file`; if it is None, this process counts
    alone. All methods block while another process holds the lock on the file."""

    def __init__(self, limit: int, file: Path | None) -> None:
        self._limit, self._file = limit, file
        self._own = _Count()

    @classmethod
    def of_run(cls, limit: int) -> Breaker:
        """Returns a breaker, with the limit `limit`, for the run to which this process belongs. It shares its
        counts with the run's other processes in the file that the environment variable `AIR_BREAKER_FILE`
        names; without the variable, this process counts alone."""
        file = os.environ.get(FILE_ENV)
        return cls(limit, Path(file) if file else None)

    def check(self) -> None:
        """Raises InfrastructureError if the breaker has opened, so that the run must stop. Called before each
        episode."""
        if reason := self._count().opened:
            raise InfrastructureError(reason)

    def ended_well(self, task: str) -> None:
        """Counts an episode of `task` that ended without an infrastructure error. Sets the number of
        consecutive failures of the task, and that of all tasks together, to 0. Subtracts `FORGIVEN` from the
        task's count of failures that occurred while an action was carried out."""
        self._count("", task)

    def failed(self, error: str, task: str, action: str | None = None) -> None:
        """Counts an episode of `task` that ended with an infrastructure error, whose message is `error`.
        `action` is the text of the action that was being carried out; None if the error occurred elsewhere,
        for example in a model call."""
        self._count(error, task, action)

    def open(self, reason: str) -> None:
        """Opens the breaker, which stops the run, regardless of the limit. `reason` is one line for the user.
        If the breaker is open already, the earlier reason stays."""
        self._update(lambda count: replace(count, opened=count.opened or reason))

    def _count(self, error: str | None = None, task: str = "", action: str | None = None) -> _Count:
        """Updates the stored counts after an episode of `task` has ended, and returns them. `error` is the
        message of the episode's infrastructure error, or "" if it had none. `action` is the text of the
        action that was being carried out when the error occurred. If `error` is None, only returns the
        counts."""
        return self._update(lambda count: self._next(count, error, task, action), task, action)

    def _update(
        self, change: Callable[[_Count], _Count], task: str = "", action: str | None = None
    ) -> _Count:
        """Applies the function `change` to the stored counts of failures, stores the result, and returns it.
        Logs a message if the breaker opens, and a warning if failures of `task` become more frequent."""
        if self._file is None:
            before, self._own = self._own, change(self._own)
            _log_changes(before, self._own, task, action)
            return self._own
        with _open_locked(self._file) as file:
            before = _read(file)
            after = change(before)
            _log_changes(before, after, task, action)
            if after != before:
                file.seek(0)
                file.truncate()
                json.dump(asdict(after), file)
            return after

    def _next(self, count: _Count, error: str | None, task: str, action: str | None) -> _Count:
        if error is None:
            return count
        outcomes = count.tasks.get(task, _WELL * 2 * WINDOW)[1:] + (_FAILED if error else _WELL)
        if rises := is_rising(outcomes):
            outcomes = outcomes[WINDOW:] * 2  # the next comparisons start from this level
        in_a_row = count.in_a_row.get(task, 0) + 1 if error else 0
        at_actions = count.at_actions.get(task, 0.0)
        at_actions = max(0.0, at_actions - FORGIVEN) if action is None else at_actions + 1
        count = replace(
            count,
            tasks={**count.tasks, task: outcomes},
            rises=count.rises + rises,
            in_a_row=_with(count.in_a_row, task, in_a_row),
            at_actions=_with(count.at_actions, task, at_actions),
        )
        if count.opened or not self._limit:
            return count
        count = replace(count, failures=count.failures + 1 if error else 0)
        return replace(count, opened=self._reason(count, error, task, action))

    def _reason(self, count: _Count, error: str, task: str, action: str | None) -> str:
        """Returns the reason why the run must stop after an episode of `task` that ended with the
        infrastructure error `error`; an empty string if the run may continue. `count` has the failures so
        far. `action` is the action of the agent during which the error occurred, or None."""
        of_task = count.in_a_row.get(task, 0)
        last = f"the last one: {' '.join(error.split())[:500]}"
        last += "" if action is None else f", {_at(action)}"
        if count.failures >= self._limit:
            return (
                f"{count.failures} episodes in a row failed through no fault of the agent, so the run "
                f"stops; {last}"
            )
        if of_task >= self._limit:
            return (
                f"{of_task} episodes of the task {task} in a row failed through no fault of the agent, so "
                f"the run stops; {last}"
            )
        if action is not None and count.at_actions.get(task, 0.0) >= self._limit:
            return (
                f"too many episodes of the task {task} failed while an action of the agent was carried out, "
                "so the run stops, since an agent that could cause this would escape bad rewards; "
                f"{last}"
            )
        return ""


def _log_changes(before: _Count, after: _Count, task: str, action: str | None) -> None:
    if after.opened and not before.opened:
        _LOG.error("%s", after.opened)
    if after.rises > before.rises:
        _LOG.warning(
            "task %s: more of its episodes fail through no fault of the agent than before, and are not "
            "trained on: find out why, since an agent that could cause this would escape bad rewards%s",
            task,
            "" if action is None else f" (the last one failed {_at(action)})",
        )


def _at(action: str) -> str:
    """Returns a phrase for messages that names the action at which an episode failed. The action's text is
    quoted, because the agent chose it: it may contain line breaks and escape sequences of terminals."""
    return f"at the action {action[:200]!r}"


_NumberT = TypeVar("_NumberT", int, float)


def _with(counts: dict[str, _NumberT], task: str, count: _NumberT) -> dict[str, _NumberT]:
    """Returns a copy of `counts` in which `task` has the value `count`, or is absent if `count` is 0."""
    changed = {**counts, task: count}
    return changed if count else {name: n for name, n in changed.items() if name != task}


def is_rising(outcomes: str) -> bool:
    """Whether a task fails more often than before: whether the second half of its last `2 * WINDOW` episodes
    has clearly more failures than the first half. `outcomes` has one character for each of these episodes,
    oldest first: `x` for a failed episode, else a dot.

    The difference must be at least `FEWEST`, and at least three standard deviations of a Poisson
    distribution with the first half's failures plus 1 as its mean.
    """
    before = outcomes[:-WINDOW].count(_FAILED)
    more = outcomes[-WINDOW:].count(_FAILED) - before
    return more >= max(FEWEST, 3 * math.sqrt(before + 1))


def opened(file: Path) -> str:
    """Returns the reason why a run must stop, from its breaker file `file`, in which the failure breaker
    stores its state. Returns "" if the run may continue, or if there is no such file. Raises ConfigError if
    the file cannot be used."""
    if not file.exists():
        return ""
    with _open_locked(file) as stream:
        return _read(stream).opened


def fresh(file: Path) -> dict[str, str]:
    """Deletes `file`, in which the failure breaker of an earlier run stored its counts, so that a new run
    starts without failures. Returns the environment variable that the new run's processes need: {name:
    absolute path of `file`}. Raises ConfigError if the file cannot be used."""
    with boundary(ConfigError, f"cannot use {file}", OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
    return {FILE_ENV: str(file.absolute())}


def _open_locked(file: Path) -> IO[str]:
    """Opens `file`, in which the failure breaker of a run (it stops the run after too many failures) stores
    its counts; waits for its lock, and returns the open file. Closing the file releases the lock."""
    with boundary(ConfigError, f"{FILE_ENV}: cannot use {file}", OSError):
        stream = file.open("a+", encoding="utf-8")
        fcntl.flock(stream, fcntl.LOCK_EX)
        stream.seek(0)
        return stream


def _read(file: IO[str]) -> _Count:
    text = file.read()
    with boundary(ConfigError, f"{FILE_ENV}: {file.name} is no breaker's", ValueError, TypeError):
        return _Count(**json.loads(text)) if text else _Count()
