"""A task's solution, which shows whether its tests work, is played once for all who ask meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from air import tasks
from air.errors import GradingError
from air.sandbox.pool.box_pool import Pool
from air.tasks.rules import Artefact, GraderResult
from air.tasks.solution_check import SolutionCheck
from air.tasks.sources.harbor.settings import HarborSettings
from air.tasks.spec import TaskSpec


def _task(root: Path, *, solution: bool) -> TaskSpec:
    folder = root / "task"
    (folder / "tests").mkdir(parents=True)
    (folder / "task.toml").write_text('[environment]\ndocker_image = "air-base"\n')
    (folder / "instruction.md").write_text("Write 42 into answer.txt.\n")
    (folder / "tests" / "test.sh").write_text("#!/bin/sh\n")
    if solution:
        (folder / "solution").mkdir()
        (folder / "solution" / "solve.sh").write_text("echo 42 > answer.txt\n")
    return tasks.load("harbor:task", harbor=HarborSettings(root=root))


class _Plays(SolutionCheck):
    """Counts plays; each waits until it may end, and then ends with `failure`, or a reward with network."""

    def __init__(self, failure: str = "") -> None:
        super().__init__(Pool(1))
        self.count, self.failure = 0, failure
        self.began, self.may_end = asyncio.Event(), asyncio.Event()

    async def _graded(
        self, task: TaskSpec, step: int, grade: Callable[[Artefact], Awaitable[GraderResult]]
    ) -> bool:
        self.count += 1
        self.began.set()
        await self.may_end.wait()
        if self.failure:
            raise GradingError(self.failure)
        return True


async def _grade(artefact: Artefact) -> GraderResult:
    raise AssertionError("the plays of this file grade nothing")


async def _asked(plays: _Plays, task: TaskSpec) -> list[str]:
    """Asks once and, while that play runs, nine times more; returns the answers."""
    first = asyncio.create_task(plays.problem(task, 0, _grade))
    await asyncio.wait(
        [first, asyncio.create_task(plays.began.wait())], return_when="FIRST_COMPLETED"
    )
    assert not first.done(), first.exception()
    others = [asyncio.create_task(plays.problem(task, 0, _grade)) for _ in range(9)]
    await asyncio.sleep(0)  # all of them have asked now
    plays.may_end.set()
    return list(await asyncio.gather(first, *others))


async def test_those_who_ask_during_a_play_share_the_next_one(tmp_path: Path) -> None:
    task, plays, broken = _task(tmp_path, solution=True), _Plays(), _Plays("no reward")
    assert await _asked(plays, task) == [""] * 10
    assert plays.count == 2
    assert await _asked(broken, task) == ["no reward"] * 10
    assert broken.count == 4  # each failure is tried once more


async def test_a_play_that_ended_says_nothing_of_later(tmp_path: Path) -> None:
    task, plays = _task(tmp_path, solution=True), _Plays()
    plays.may_end.set()
    for _ in range(2):
        assert await plays.problem(task, 0, _grade) == ""
    assert plays.count == 2


async def test_without_a_solution_nothing_shows_that_tests_are_broken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = _task(tmp_path, solution=False)
    assert await SolutionCheck(Pool(1)).problem(task, 0, _grade) == ""
    assert "no reference solution: the work gets the lowest reward" in caplog.text
