"""Runs and grades the reference solution of a task with tests, such as a Harbor task, to show that the tests
can give a reward. The grader asks this when the tests write no reward for an agent's work.

If tests write no reward for an agent's work, and none for an agent that did nothing either, there are two
explanations: the tests are broken, or they write a reward only for work that is good enough. The reference
solution decides between them: if it gets a reward on the same machine at the same time, the tests and the
machine work. If it gets none at two attempts, the task is broken, and the run stops with a message that names
the task. The run does not go on without the episode: otherwise an agent could leave every bad episode of such
a task out of training by making the tests fail.

Without a reference solution, or if the run lacks a setting that the solution needs, nothing shows that the
tests are broken. The agent's work then counts as at fault: otherwise an agent could leave every bad episode
out of training by making the tests fail. If the tests are in fact broken, all episodes of the task get the
same reward, and nothing is learnt from them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable

from air.errors import (
    ArtefactError,
    BoxEndedError,
    ConfigError,
    GradingError,
    StagingError,
)
from air.sandbox.pool.box_pool import Pool
from air.tasks.rules import Artefact, GraderResult, Rules
from air.tasks.spec import TaskSpec

KEPT_SECONDS = 600.0
"""The time in seconds for which a reference solution that got a reward is not run again. It applies only to
tasks whose boxes (sandboxes) have no network: their tests cannot break because something outside has
changed."""
_FAILURES = (GradingError, BoxEndedError, StagingError, ArtefactError)
"""The types of errors which mean that the reference solution of a task gets no reward because of the task.
Other errors mean that it could not run properly, for example because the machine failed."""
_SILENT = "its tests wrote no reward for an agent's work, nor for that of an agent that did nothing"
_CHARGED = "the work gets the lowest reward; `air tasks check` shows whether the tests work"
_log = logging.getLogger(__name__)


class SolutionCheck:
    """Finds out whether a task's tests can still give a reward: runs the reference solution in a box
    (sandbox) of `pool` and grades the result. Solutions of the same stage of a task (step, in Harbor's words)
    never run at the same time."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._locks: defaultdict[tuple[str, int], asyncio.Lock] = defaultdict(asyncio.Lock)
        self._kept: dict[tuple[str, int], float] = {}
        self._latest: dict[tuple[str, int], tuple[float, str]] = {}
        """The latest run of a solution, by task hash and number of the task's stage (step, in Harbor's
        words): when it began (monotonic clock, in seconds), and the reason why it got no reward (empty if it
        got one)."""

    async def problem(
        self, task: TaskSpec, step: int, grade: Callable[[Artefact], Awaitable[GraderResult]]
    ) -> str:
        """Returns the reason why the reference solution of the task's stage numbered `step`, from 0, gets no
        reward at two attempts; an empty string if it gets one, or if there is no solution that can run.
        `grade` grades an artefact (the files that the solution made) in a fresh box (sandbox). Raises
        InfrastructureError if air or the machine failed.

        If several callers arrive while the solution runs, they wait, and share the result of one further run.
        Otherwise many agents whose work breaks the tests would cause equally many runs, and delay other
        agents.
        """
        assert task.rules is not None
        if not task.rules.has_solution(step):
            _log.warning("%s: %s, and it has no reference solution: %s", task.id, _SILENT, _CHARGED)
            return ""
        key, asked = (task.hash, step), time.monotonic()
        async with self._locks[key]:
            began = time.monotonic()
            if began < self._kept.get(key, 0.0):
                return ""
            if key in self._latest and self._latest[key][0] >= asked:
                return self._latest[key][1]
            problem = await self._attempt(task, step, grade)
            if problem:
                _log.warning("%s: its solution is run once more: %s", task.id, problem)
                problem = await self._attempt(task, step, grade)
            self._latest[key] = (began, problem)
            return problem

    async def _attempt(
        self, task: TaskSpec, step: int, grade: Callable[[Artefact], Awaitable[GraderResult]]
    ) -> str:
        """Runs and grades the reference solution of a stage of the task once. Returns the reason why it gets
        no reward; an empty string if it gets one, or if it cannot run here."""
        try:
            if not await self._graded(task, step, grade):
                self._kept[task.hash, step] = time.monotonic() + KEPT_SECONDS
        except ConfigError as error:  # which shows nothing about the tests
            _log.warning("%s: %s, and %s: %s", task.id, _SILENT, error, _CHARGED)
        except _FAILURES as error:
            return " ".join(str(error).split())
        return ""

    async def _graded(
        self, task: TaskSpec, step: int, grade: Callable[[Artefact], Awaitable[GraderResult]]
    ) -> bool:
        """Runs and grades the reference solution of a stage of the task once. Returns normally only if the
        solution gets a reward; otherwise raises an error of a type in `_FAILURES`. The returned value says
        whether a box (sandbox) of the task has network access: if so, the success may not last, and the next
        call of `problem` runs the solution again."""
        rules = task.rules
        assert rules is not None
        spec = rules.agent_box()
        async with self._pool.lease(spec) as box, box.attributing():
            complaint = await rules.solve(box, step)
            if complaint:  # its exit status has no meaning
                _log.warning("%s: %s", task.id, complaint)
            if rules.shared:
                await rules.grade_shared(box, step)
                return bool(spec.network)
            artefact = await rules.collect(box, step)
        # Graded only after the solution's box is free again: both boxes belong to the same pool.
        outcome = await grade(artefact)
        if outcome.message:
            raise ArtefactError(outcome.message)
        return _has_network(rules, artefact)


def _has_network(rules: Rules, artefact: Artefact) -> bool:
    return bool(rules.agent_box().network or rules.grading_box(artefact).network)
