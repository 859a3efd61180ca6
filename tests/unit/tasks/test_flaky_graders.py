"""Graders that fail now and then, in real process boxes: no artefact can mask its episode by that."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import pytest

from air.errors import ArtefactError, BrokenTaskError, GradingError
from air.sandbox.contract.box import Box, BoxSpec, Snapshot
from air.sandbox.pool.box_pool import Pool
from air.tasks.artefact import Artefact
from air.tasks.grading import NOT_GRADED, Grader, empty_artefact
from tests.unit.tasks.conftest import SCORE, MakeTask

TWO = Artefact({"answer.txt": b"2"})
FAILS = """
if pathlib.Path('bad_luck').exists(): raise RuntimeError('a bug that shows now and then')
"""
"""Fails in the boxes that `Unlucky` chose."""


class Unlucky(Pool):
    """A pool that leaves the file `bad_luck` in the boxes with these numbers, from 1."""

    def __init__(self, numbers: Collection[int]) -> None:
        super().__init__(1)
        self.numbers, self.leases = numbers, 0

    @asynccontextmanager
    async def lease(self, spec: BoxSpec, *, snapshot: Snapshot | None = None) -> AsyncIterator[Box]:
        self.leases += 1
        async with super().lease(spec, snapshot=snapshot) as box:
            if self.leases in self.numbers:
                await box.write("bad_luck", b"")
            yield box


async def test_a_failure_that_does_not_come_again_is_told_and_the_grade_counts_once(
    make_task: MakeTask,
) -> None:
    task = make_task(FAILS + SCORE)
    async with Unlucky({1}) as pool:
        grader = Grader(pool, "process")
        first = await grader.grade(task, TWO, split="val")
        assert first.score == 2.0
        assert "a bug that shows" in first.first_error
        again = await grader.grade(task, TWO, split="val")
        assert (again.score, again.reused, again.first_error) == (2.0, True, "")
        assert pool.leases == 2


async def test_a_refusal_at_the_second_try_is_no_fault_of_the_grader(make_task: MakeTask) -> None:
    task = make_task(FAILS + "end(3, json.dumps({'message': 'a bad table'}))")
    async with Unlucky({1}) as pool:
        with pytest.raises(ArtefactError, match="a bad table") as caught:
            await Grader(pool, "process").grade(task, TWO, split="val")
    assert caught.value.fault == ""


@pytest.mark.parametrize("artefact", ["full", "empty"])
async def test_two_failures_are_the_artefacts_fault_even_if_the_empty_one_fails_once(
    make_task: MakeTask, artefact: str
) -> None:
    """Before, the failure on the empty artefact masked the episode: a way to escape by chance."""
    task = make_task(FAILS + SCORE)
    graded = TWO if artefact == "full" else empty_artefact(task)
    async with Unlucky({1, 2, 3}) as pool:
        with pytest.raises(ArtefactError, match=NOT_GRADED) as caught:
            await Grader(pool, "process").grade(task, graded, split="test")
        assert "a bug that shows" in caught.value.fault
        assert pool.leases == 4


async def test_a_grader_that_fails_whatever_it_grades_is_a_broken_task(make_task: MakeTask) -> None:
    task = make_task(FAILS + SCORE)
    async with Unlucky({1, 2, 3, 4}) as pool:
        with pytest.raises(BrokenTaskError, match=r"a bug that shows.*mend the grader"):
            await Grader(pool, "process").grade(task, TWO, split="test")


async def test_a_grader_that_is_too_slow_whatever_it_grades_may_be_ours(
    make_task: MakeTask,
) -> None:
    """The machine may be overloaded: no reason to stop the run at once."""
    task = make_task("import time; time.sleep(60)", toml="[limits]\ngrade_seconds = 1\n")
    async with Pool(1) as pool:
        with pytest.raises(GradingError, match="ran past 1 s") as caught:
            await Grader(pool, "process").grade(task, TWO, split="val")
    assert not isinstance(caught.value, BrokenTaskError)


async def test_at_the_start_one_failure_on_an_empty_artefact_is_refused(
    make_task: MakeTask,
) -> None:
    task = make_task(FAILS + SCORE)
    async with Unlucky({1}) as pool:
        with pytest.raises(GradingError, match="on an empty artefact"):
            await Grader(pool, "process").check(task)


async def test_a_grade_anew_is_neither_remembered_nor_tried_twice(make_task: MakeTask) -> None:
    task = make_task(FAILS + SCORE)
    async with Unlucky({3}) as pool:
        grader = Grader(pool, "process")
        await grader.grade(task, TWO, split="val")
        assert not (await grader.grade_anew(task, TWO, split="val")).reused
        with pytest.raises(GradingError, match="a bug that shows"):
            await grader.grade_anew(task, TWO, split="val")
        with pytest.raises(ArtefactError, match="it is empty"):
            await grader.grade_anew(task, empty_artefact(task), split="val")
