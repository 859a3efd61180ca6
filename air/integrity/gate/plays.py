"""Runs a script or a function as the agent of a Harbor task, step by step, and grades the resulting
artefacts."""

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
"""A function that acts as the agent in one step of a Harbor task. It gets the agent's box and the step's
number, from 0, and returns a message about a problem, or an empty text."""
_MOST_INPUTS, _MOST_BYTES = 300, 1_000_000
_DEPTH = 8


@dataclass(frozen=True)
class PlayResult:
    """The result of playing a task once."""

    reward: float | None
    """The task's reward; None if the tests wrote no reward, or another command of the task failed, and the
    agent is not to blame."""
    error: str = ""
    """The reason why there is no reward, or why a step of the Harbor task got the lowest reward."""
    complaint: str = ""
    """The first message about a problem from the function that acted as the agent (see `Act`); empty if there
    is none."""
    artefacts: tuple[Artefact, ...] = ()
    """The artefacts that were collected, one for each step of the Harbor task that was played."""
    again: float | None = None
    """The reward if every artefact is graded a second time; None if it was graded only once."""


@dataclass
class _Steps:
    """The results of those steps of a Harbor task that the player has played so far."""

    rewards: list[float | None] = field(default_factory=list)
    again: list[float | None] = field(default_factory=list)
    """The rewards of the steps of the task when their artefacts are graded a second time."""
    artefacts: list[Artefact] = field(default_factory=list)
    complaint: str = ""
    error: str = ""
    ended: bool = False
    """Whether the play ended before the last step of the task, because the box ended or could not be prepared
    for a step."""


@dataclass(frozen=True)
class Player:
    """Plays one Harbor task, with a function (`Act`) in the place of the agent."""

    task: TaskSpec
    rules: HarborRules
    boxes: Pool
    grader: Grader

    async def play(self, act: Act, *, twice: bool = False) -> PlayResult:
        """Plays the task and returns the result. With `twice`, each artefact is graded a second time; if the
        tests run in the agent's box, the whole task is played a second time instead.

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
        return PlayResult(total, steps.error, steps.complaint, tuple(steps.artefacts), again)

    async def _play(self, box: Box, act: Act, twice: bool, steps: _Steps) -> None:
        for number in range(self.rules.steps):
            if not await self._staged(box, number, steps):
                return
            metrics: Mapping[str, float] = {}
            try:
                async with box.attributing():
                    steps.complaint = steps.complaint or await act(box, number)
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
        """Prepares the box for a step of the Harbor task; returns whether this succeeded. Raises the error if
        the first step cannot be prepared. For a later step, the failure ends the play, as it ends an episode,
        because the agent's earlier work can have broken the box."""
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
    """Returns the contents of the files below a folder of a box, by absolute path. Omits links, files above a
    million bytes, files more than eight levels deep, and all but the first 300 other files. For the folder
    `/`, returns an empty dict."""
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
