"""A task's solution, which shows whether its tests work, is played once for all who ask meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from air.errors import GradingError
from air.sandbox.pool.box_pool import Pool
from air.tasks.reference import SolutionCheck
from air.tasks.rules import Artefact, Outcome
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
