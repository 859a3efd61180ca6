"""A task's solution, which shows whether its tests work, is played once for all who ask meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from air import tasks
from air.errors import GradingError, MissingError
from air.sandbox.pool.box_pool import Pool
from air.tasks.reference import KEPT_BYTES, SolutionCheck
from air.tasks.rules import Artefact, Outcome
from air.tasks.sources.harbor.settings import HarborSettings
from air.tasks.spec import TaskSpec
from tests.unit.tasks.conftest import MakeTask


class _Plays(SolutionCheck):
    """Counts plays; each waits until it may end, and then ends with `failure`, or a reward with network."""

    def __init__(self, failure: str = "") -> None:
        super().__init__(Pool(1))
        self.count, self.failure = 0, failure
        self.began, self.may_end = asyncio.Event(), asyncio.Event()

    async def _graded(
        self, task: TaskSpec, step: int, grade: Callable[[Artefact], Awaitable[Outcome]]
    ) -> bool:
        self.count += 1
        self.began.set()
        await self.may_end.wait()
        if self.failure:
            raise GradingError(self.failure)
        return True


async def _grade(artefact: Artefact) -> Outcome:
    raise AssertionError("the plays of this file grade nothing")


async def _asked(plays: _Plays, task: TaskSpec) -> list[str]:
    """Asks once and, while that play runs, nine times more; returns the answers."""
    first = asyncio.create_task(plays.problem(task, 0, _grade))
    await plays.began.wait()
    others = [asyncio.create_task(plays.problem(task, 0, _grade)) for _ in range(9)]
    await asyncio.sleep(0)  # all of them have asked now
    plays.may_end.set()
    return list(await asyncio.gather(first, *others))


async def test_those_who_ask_during_a_play_share_the_next_one(make_task: MakeTask) -> None:
    task, plays, broken = make_task(), _Plays(), _Plays("no reward")
    assert await _asked(plays, task) == [""] * 10
    assert plays.count == 2
    assert await _asked(broken, task) == ["no reward"] * 10
    assert broken.count == 2


async def test_a_play_that_ended_says_nothing_of_later(make_task: MakeTask) -> None:
    task, plays = make_task(), _Plays()
    plays.may_end.set()
    for _ in range(2):
        assert await plays.problem(task, 0, _grade) == ""
    assert plays.count == 2


class _NoSolution(SolutionCheck):
    """Checks tasks without a solution."""

    async def _graded(
        self, task: TaskSpec, step: int, grade: Callable[[Artefact], Awaitable[Outcome]]
    ) -> bool:
        raise MissingError("there is no solution")


@pytest.fixture
def harbor_task(tmp_path: Path) -> TaskSpec:
    folder = tmp_path / "task"
    (folder / "tests").mkdir(parents=True)
    (folder / "task.toml").write_text('[environment]\ndocker_image = "air-base"\n')
    (folder / "instruction.md").write_text("Write 42 into answer.txt.\n")
    (folder / "tests" / "test.sh").write_text("#!/bin/sh\n")
    return tasks.load("harbor:task", harbor=HarborSettings(root=tmp_path))


def artefact(task: TaskSpec, text: str) -> Artefact:
    assert task.rules is not None
    return Artefact({**task.rules.untouched(0).files, "/workspace/answer.txt": text.encode()})


async def test_one_artefact_of_several_that_gets_its_reward_again_shows_that_the_tests_work(
    harbor_task: TaskSpec,
) -> None:
    check, graded = _NoSolution(Pool(1)), []
    for text in ("by chance", "by chance", "42", "43", "never kept"):
        check.rewarded(harbor_task, 0, artefact(harbor_task, text))

    async def grade(one: Artefact) -> Outcome:
        graded.append(one.files["/workspace/answer.txt"].decode())
        if graded[-1] == sound:
            return Outcome({"reward": 1.0})
        raise GradingError("wrote neither")

    sound = "42"
    assert await check.problem(harbor_task, 0, grade) == ""
    assert graded == ["by chance", "42"]
    graded.clear()
    sound = "none of them"
    check = _NoSolution(Pool(1))
    assert await check.problem(harbor_task, 0, grade) == "there is no solution"
    for text in ("by chance", "42", "43", "never kept"):
        check.rewarded(harbor_task, 0, artefact(harbor_task, text))
    assert await check.problem(harbor_task, 0, grade) == "wrote neither"
    assert graded == ["by chance", "42", "43"]


async def test_artefacts_that_are_kept_have_a_bound(
    harbor_task: TaskSpec, make_task: MakeTask
) -> None:
    check = _NoSolution(Pool(1))
    for number in range(8):
        half = f"{number}" + "x" * (KEPT_BYTES // 2 - 1)
        check.rewarded(
            harbor_task if number < 2 else make_task(), number, artefact(harbor_task, half)
        )
    check.rewarded(harbor_task, 99, artefact(harbor_task, "x" * (KEPT_BYTES + 1)))
    kept = [one for of_step in check._rewarded.values() for one in of_step.values()]
    assert sum(len(data) for one in kept for data in one.files.values()) <= KEPT_BYTES
    assert kept
    assert all(of_step for of_step in check._rewarded.values())
