"""Runs Harbor tasks, step by step, with a function that acts as the agent, and grades the resulting artefacts
(the files that the agent hands in). A Harbor task has one or several steps, each with its tests."""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace

from air.aio import run_concurrently
from air.errors import ArtefactError, BoxEndedError, BoxFileError, GradingError, StagingError
from air.sandbox.contract.box import Box
from air.sandbox.pool.box_pool import Pool
from air.tasks.grading import Grade, Grader
from air.tasks.rules import Artefact
from air.tasks.sources.harbor.source import HarborRules
from air.tasks.spec import TaskSpec

Act = Callable[[Box, int], Awaitable[str]]
"""A function that acts as the agent in one step of a Harbor task. It gets the agent's box (container) and the
step's number, from 0, and returns a message about a problem, or an empty string."""
_MOST_INPUTS, _MOST_BYTES = 300, 1_000_000
_DEPTH = 8


@dataclass(frozen=True)
class PlayResult:
    """The result of running a Harbor task once, with a function that acts as the agent."""

    reward: float | None
    """The reward for the whole task. None if there is none, through no fault of the agent: the tests wrote no
    reward, or another command of the task failed."""
    error: str = ""
    """The reason why there is no reward, or why a step of the Harbor task got the lowest reward."""
    complaint: str = ""
    """The first message about a problem that came from the function that acts as the agent (see `Act`); empty
    if there was none."""
    artefacts: tuple[Artefact, ...] = ()
    """The artefacts (files that the agent handed in) that were collected in the steps that were played."""
    ended: bool = False
    """Whether the task ended early, because the box (container) ended or could not be prepared for a step.
    The reason is `error`."""
    again: float | None = None
    """The reward of a second grading of the same work, to see whether rewards are random; None if there was
    no second grading."""


@dataclass
class _Steps:
    """The results of the steps of a Harbor task that have been played so far."""

    rewards: list[float | None] = field(default_factory=list)
    again: list[float | None] = field(default_factory=list)
    """The rewards of a second grading, one for each step that was played."""
    artefacts: list[Artefact] = field(default_factory=list)
    complaint: str = ""
    error: str = ""
    ended: bool = False
    """Whether no further step of the task can be played, because the box (container) ended or could not be
    prepared for a step."""


@dataclass(frozen=True)
class Player:
    """Runs one Harbor task, with a function (see `Act`) that acts as the agent, and grades the result."""

    task: TaskSpec
    rules: HarborRules
    boxes: Pool
    grader: Grader

    async def play(self, act: Act, *, twice: bool = False) -> PlayResult:
        """Runs the task once, with the function `act` as the agent, and returns the rewards and what was
        handed in. With `twice`, each artefact (what the agent hands in) is graded a second time; if the tests
        run in the agent's box, the whole task is run a second time instead.

        Raises InfrastructureError if air or the machine failed, and not the task.
        """
        played = await self._once(act, twice=twice and not self.rules.shared)
        if twice and self.rules.shared:
            return replace(played, again=(await self._once(act, twice=False)).reward)
        return played

    async def _once(self, act: Act, *, twice: bool) -> PlayResult:
        steps = _Steps()
        try:
            async with self.boxes.lease(self.task.box_spec("docker")) as box:
                await self._play(box, act, twice, steps)
        except (GradingError, StagingError) as error:  # a command or the tests of the task fail
            return PlayResult(None, " ".join(str(error).split()), steps.complaint)
        total = self.rules.total(steps.rewards, ended=steps.ended)
        again = self.rules.total(steps.again, ended=steps.ended) if twice else None
        made = tuple(steps.artefacts)
        return PlayResult(total, steps.error, steps.complaint, made, steps.ended, again=again)

    async def _play(self, box: Box, act: Act, twice: bool, steps: _Steps) -> None:
        for number in range(self.rules.steps):
            if not await self._staged(box, number, steps):
                return
            metrics: Mapping[str, float] = {}
            try:
                async with box.attributing():
                    message = await act(box, number)
                steps.complaint = steps.complaint or message
                grades = await self._grades(box, number, 2 if twice else 1, steps)
                metrics = grades[0].metrics
                steps.rewards.append(grades[0].score)
                steps.again.append(grades[-1].score)
            except (ArtefactError, BoxEndedError) as error:
                fault = error.fault if isinstance(error, ArtefactError) else ""
                steps.error = steps.error or fault or " ".join(str(error).split())
                steps.rewards.append(None)
                steps.again.append(None)
                if isinstance(error, BoxEndedError):
                    steps.ended = True
                    return
            if not self.rules.goes_on(number, metrics):
                return

    async def _staged(self, box: Box, number: int, steps: _Steps) -> bool:
        """Prepares the box for the step with this number (from 0), and returns whether this succeeded. If the
        first step cannot be prepared, raises the error. A failure at a later step only ends the play, as it
        would end an episode, because the agent's earlier work may have broken the box."""
        if number == 0:
            await self.rules.stage(box, number)
            return True
        try:
            async with box.attributing():
                await self.rules.stage(box, number)
        except (BoxEndedError, StagingError) as error:
            steps.error = steps.error or " ".join(str(error).split())
            steps.ended = True
        return not steps.ended

    async def _grades(self, box: Box, number: int, times: int, steps: _Steps) -> list[Grade]:
        if self.rules.shared:
            with contextlib.suppress(ArtefactError):  # kept to show what was made, not graded
                steps.artefacts.append(await self._collect(box, number))
            return [await self.grader.grade_in(self.task, box, number)]
        artefact = await self._collect(box, number)
        steps.artefacts.append(artefact)
        # Grades are cached by seed, so a second grading needs another seed.
        works = [self.grader.grade(self.task, artefact, split="val", seed=n) for n in range(times)]
        return await run_concurrently(works)

    async def _collect(self, box: Box, number: int) -> Artefact:
        async with box.attributing():
            return await self.rules.collect(box, number)


async def files(box: Box, folder: str) -> dict[str, bytes]:
    """Returns the contents of at most 300 files below the folder `folder` of a box, by absolute path. Leaves
    out links, files larger than a million bytes, and files more than eight levels deep. For the folder `/`,
    returns an empty dict."""
    if folder == "/":
        return {}
    contents = {}
    entries = await box.list(folder, depth=_DEPTH, user="root")
    wanted = [e for e in entries if e.kind == "file" and not e.link and e.size <= _MOST_BYTES]
    for entry in wanted[:_MOST_INPUTS]:
        path = posixpath.join(folder, entry.path)
        try:
            contents[path] = await box.read(path, max_bytes=_MOST_BYTES, user="root")
        except BoxFileError:  # a health check or a service of the task removed it meanwhile
            continue
    return contents
