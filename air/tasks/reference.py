"""Runs and grades a task's reference solution, to show that the tests of a task such as Harbor's can give a
reward.

If tests write no reward for an agent's work, and none for an agent that did nothing, there are two
explanations: the tests are broken, or they write a reward only for work that is good enough. The reference
solution decides between them: if it gets a reward on the same machine at the same time, the tests and the
machine work. If the task has no solution, agents' artefacts that got a reward earlier take its place. Several
are stored, because a single artefact may have got its reward by chance.

An agent could hand in work that gets a reward once and never again. If only such work were stored, bad work
of agents would later count as an infrastructure error. Therefore new artefacts replace the oldest, an
artefact that gets its reward again is not replaced, and large artefacts of one task do not remove those of
another. Grading an artefact again never changes the reward of the agent that made it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from air.errors import (
    ArtefactError,
    BoxEndedError,
    ConfigError,
    GradingError,
    MissingError,
    StagingError,
)
from air.sandbox.pool.box_pool import Pool
from air.tasks.rules import Artefact, Outcome, Rules
from air.tasks.spec import TaskSpec

KEPT_SECONDS = 600.0
"""Time in seconds during which a reference solution that got a reward is not run again. It applies only to
tasks whose boxes have no network, because their tests cannot break for outside reasons."""
KEPT_ARTEFACTS = 3
"""The maximum number of agents' rewarded artefacts that are stored for each step of a task. If the task has
no reference solution, grading them again shows whether its tests still work."""
KEPT_BYTES = 64 * 2**20
"""The largest total size in bytes of the stored artefacts of all tasks."""
_FAILURES = (GradingError, BoxEndedError, StagingError, ArtefactError, MissingError, ConfigError)
"""The types of errors that mean that a reference solution gets no reward because of the task, not because air
or the machine failed."""
_log = logging.getLogger(__name__)


@dataclass
class _Rewarded:
    """The stored artefacts of agents that got a reward in one step of a task."""

    artefacts: dict[str, Artefact] = field(default_factory=dict)
    """The stored artefacts by their digest: first the one named in `confirmed`, then the others, oldest
    first."""
    confirmed: str = ""
    """The digest of the artefact that most recently got a reward when it was graded again; empty if there is
    none."""

    @property
    def size(self) -> int:
        return sum(map(_size, self.artefacts.values()))

    def add(self, artefact: Artefact) -> None:
        """Stores an artefact, in place of the oldest if there are `KEPT_ARTEFACTS` already."""
        self.artefacts.setdefault(artefact.digest, artefact)
        while len(self.artefacts) > KEPT_ARTEFACTS:
            self.drop_oldest()

    def drop_oldest(self) -> None:
        """Drops the oldest artefact. The artefact named in `confirmed` is dropped only if there is no
        other."""
        others = (digest for digest in self.artefacts if digest != self.confirmed)
        del self.artefacts[next(others, self.confirmed)]

    def confirm(self, artefact: Artefact, failed: Sequence[Artefact]) -> None:
        """Stores in `confirmed` that `artefact` got a reward when it was graded again. Drops the artefacts
        `failed`, which got none when they were graded again."""
        self.confirmed = artefact.digest
        gone = {self.confirmed, *(one.digest for one in failed)}
        others = [one for digest, one in self.artefacts.items() if digest not in gone]
        self.artefacts = {self.confirmed: artefact}
        for other in others:
            self.add(other)


class SolutionCheck:
    """Finds out whether a task's tests can still give a reward: runs the reference solution in a box of
    `pool` and grades the result. Solutions of the same step of a task never run at the same time."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._locks: defaultdict[tuple[str, int], asyncio.Lock] = defaultdict(asyncio.Lock)
        self._kept: dict[tuple[str, int], float] = {}
        self._latest: dict[tuple[str, int], tuple[float, str]] = {}
        """The latest run of a solution, by task hash and step of the task: when it began (monotonic clock, in
        seconds), and the reason why it got no reward (empty if it got one)."""
        self._rewarded: dict[tuple[str, int], _Rewarded] = {}
        """Agents' artefacts that got a reward, by task hash and step of the task. `problem` grades them again
        if the task has no reference solution."""

    def rewarded(self, task: TaskSpec, step: int, artefact: Artefact) -> None:
        """Stores an agent's artefact that got a reward, for a later call of `problem`. It replaces the oldest
        if `KEPT_ARTEFACTS` artefacts of this step of the task are already stored. If the stored artefacts of
        all tasks together exceed `KEPT_BYTES`, drops the oldest artefact of that step whose artefacts take
        most space."""
        if _size(artefact) > KEPT_BYTES:
            return
        self._rewarded.setdefault((task.hash, step), _Rewarded()).add(artefact)
        self._drop_excess()

    def _drop_excess(self) -> None:
        while sum(of_step.size for of_step in self._rewarded.values()) > KEPT_BYTES:
            largest = max(self._rewarded, key=lambda key: self._rewarded[key].size)
            self._rewarded[largest].drop_oldest()
            if not self._rewarded[largest].artefacts:
                del self._rewarded[largest]

    async def problem(
        self, task: TaskSpec, step: int, grade: Callable[[Artefact], Awaitable[Outcome]]
    ) -> str:
        """Returns the reason why the reference solution of a step of the task gets no reward; an empty text
        if it gets one. `grade` grades an artefact in a fresh box. Raises InfrastructureError if air or the
        machine failed.

        If several callers arrive while the solution runs, they wait, and share the result of one further run.
        Otherwise many agents whose work breaks the tests would cause equally many runs, and delay other
        agents.
        """
        key, asked = (task.hash, step), time.monotonic()
        async with self._locks[key]:
            began = time.monotonic()
            if began < self._kept.get(key, 0.0):
                return ""
            if key in self._latest and self._latest[key][0] >= asked:
                return self._latest[key][1]
            problem = ""
            try:
                try:
                    networked = await self._graded(task, step, grade)
                except MissingError:
                    if key not in self._rewarded:
                        raise
                    networked = await self._any_again(task, step, grade)
                if not networked:
                    self._kept[key] = time.monotonic() + KEPT_SECONDS
            except _FAILURES as error:
                problem = " ".join(str(error).split())
            self._latest[key] = (began, problem)
            return problem

    async def _graded(
        self, task: TaskSpec, step: int, grade: Callable[[Artefact], Awaitable[Outcome]]
    ) -> bool:
        """Runs and grades the reference solution of a step of the task. Returns whether a box of the task has
        network access. If so, the next run could fail for an outside reason, so the next call of `problem`
        runs the solution again. Raises an error of a type in `_FAILURES` if the solution gets no reward."""
        rules = task.rules
        assert rules is not None
        spec = rules.agent_box()
        async with self._pool.lease(spec) as box, box.attributing():
            complaint = await rules.solve(box, step)
            if complaint:  # the script's exit status does not decide
                _log.warning("%s: %s", task.id, complaint)
            if rules.shared:
                await rules.grade_shared(box, step)
                return bool(spec.network)
            artefact = await rules.collect(box, step)
        # Not inside the block above, because the grading box comes from the same pool.
        return await _graded_again(task, artefact, grade)

    async def _any_again(
        self, task: TaskSpec, step: int, grade: Callable[[Artefact], Awaitable[Outcome]]
    ) -> bool:
        """Grades the stored artefacts of a step of the task again, one after the other, until one of them
        gets a reward. Then drops the artefacts that got none. Returns whether a box of the task has network
        access. If no artefact gets a reward, raises the error of the last one, of a type in `_FAILURES`."""
        stored = self._rewarded[task.hash, step]
        *others, last = stored.artefacts.values()
        failed: list[Artefact] = []
        for artefact in others:
            try:
                networked = await _graded_again(task, artefact, grade)
            except _FAILURES as error:
                text = "an artefact that got a reward before gets none"
                _log.warning("%s: %s: %s", task.id, text, error)
                failed.append(artefact)
            else:
                break
        else:
            artefact = last
            networked = await _graded_again(task, artefact, grade)
        stored.confirm(artefact, failed)
        self._drop_excess()
        return networked


async def _graded_again(
    task: TaskSpec, artefact: Artefact, grade: Callable[[Artefact], Awaitable[Outcome]]
) -> bool:
    """Grades an artefact to see whether it gets a reward. Returns whether a box of the task has network
    access, which could make the next grading differ. Raises an error of a type in `_FAILURES` if the artefact
    gets no reward."""
    assert task.rules is not None
    outcome = await grade(artefact)
    if outcome.message:
        raise ArtefactError(outcome.message)
    return _has_network(task.rules, artefact)


def _size(artefact: Artefact) -> int:
    return sum(map(len, artefact.files.values()))


def _has_network(rules: Rules, artefact: Artefact) -> bool:
    return bool(rules.agent_box().network or rules.grading_box(artefact).network)
