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


class _Grading:
    """Grades artefacts by the text of their answer: one of `sound` gets a reward, any other none. `texts`
    lists the graded ones."""

    def __init__(self, *sound: str) -> None:
        self.sound, self.texts = set(sound), list[str]()

    async def __call__(self, one: Artefact) -> Outcome:
        self.texts.append(one.files["/workspace/answer.txt"].decode())
        if self.texts[-1] in self.sound:
            return Outcome({"reward": 1.0})
        raise GradingError("wrote neither")

    async def problem(self, check: SolutionCheck, task: TaskSpec, *sound: str) -> str:
        """Asks `check` at a time at which only the texts `sound` get a reward."""
        self.sound, self.texts = set(sound), []
        return await check.problem(task, 0, self)


def _rewarded(check: SolutionCheck, task: TaskSpec, *texts: str) -> None:
    for text in texts:
        check.rewarded(task, 0, artefact(task, text))


async def test_one_artefact_of_several_that_gets_its_reward_again_shows_that_the_tests_work(
    harbor_task: TaskSpec,
) -> None:
    check, grading = _NoSolution(Pool(1)), _Grading()
    assert await grading.problem(check, harbor_task, "42") == "there is no solution"
    _rewarded(check, harbor_task, "by chance", "by chance", "42", "43")
    assert await grading.problem(check, harbor_task) == "wrote neither"
    assert grading.texts == ["by chance", "42", "43"]
    assert await grading.problem(check, harbor_task, "42") == ""
    assert grading.texts == ["by chance", "42"]


async def test_the_oldest_artefact_makes_room_for_a_new_one(harbor_task: TaskSpec) -> None:
    """Otherwise early artefacts that no longer get their reward would hold all places for good."""
    check, grading = _NoSolution(Pool(1)), _Grading()
    _rewarded(check, harbor_task, "early 1", "early 2", "early 3", "42")
    assert await grading.problem(check, harbor_task, "42") == ""
    assert grading.texts == ["early 2", "early 3", "42"]


async def test_artefacts_that_fail_while_another_gets_its_reward_are_dropped(
    harbor_task: TaskSpec,
) -> None:
    check, grading = _NoSolution(Pool(1)), _Grading()
    _rewarded(check, harbor_task, "early 1", "42", "early 2")
    assert await grading.problem(check, harbor_task, "42") == ""
    assert await grading.problem(check, harbor_task) == "wrote neither"
    assert grading.texts == ["42", "early 2"]
    assert await grading.problem(check, harbor_task, "early 2") == ""
    assert await grading.problem(check, harbor_task) == "wrote neither"
    assert grading.texts == ["early 2"]


async def test_no_number_of_new_artefacts_removes_one_that_got_its_reward_again(
    harbor_task: TaskSpec,
) -> None:
    """Otherwise agents could fill all places with artefacts that get a reward only once, and then their bad
    episodes would count as failures of the infrastructure."""
    check, grading = _NoSolution(Pool(1)), _Grading()
    _rewarded(check, harbor_task, "42")
    assert await grading.problem(check, harbor_task, "42") == ""
    _rewarded(check, harbor_task, *(f"once {number}" for number in range(9)))
    assert await grading.problem(check, harbor_task) == "wrote neither"
    assert grading.texts == ["42", "once 7", "once 8"]
    assert await grading.problem(check, harbor_task, "42") == ""


async def test_large_artefacts_of_one_task_remove_none_of_another(
    harbor_task: TaskSpec, make_task: MakeTask
) -> None:
    check, grading, other = _NoSolution(Pool(1)), _Grading(), make_task()
    _rewarded(check, harbor_task, "42")
    for number in range(4):
        check.rewarded(other, 0, artefact(harbor_task, f"{number}" + "x" * (KEPT_BYTES - 1000)))
    assert await grading.problem(check, harbor_task, "42") == ""


async def test_an_artefact_that_is_removed_while_it_is_graded_is_stored_again(
    harbor_task: TaskSpec,
) -> None:
    check, grading = _NoSolution(Pool(1)), _Grading("42")
    _rewarded(check, harbor_task, "42")

    async def grade(one: Artefact) -> Outcome:
        _rewarded(check, harbor_task, "new 1", "new 2", "new 3")
        return await grading(one)

    assert await check.problem(harbor_task, 0, grade) == ""
    assert await grading.problem(check, harbor_task) == "wrote neither"
    assert grading.texts == ["42", "new 2", "new 3"]


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
    kept = [one for of_step in check._rewarded.values() for one in of_step.artefacts.values()]
    assert sum(len(data) for one in kept for data in one.files.values()) <= KEPT_BYTES
    assert kept
    assert all(of_step.artefacts for of_step in check._rewarded.values())
