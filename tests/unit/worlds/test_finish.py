"""The gradings of a research world: one artefact for both splits, gradings that outlast their caller, and
processes that the agent left running."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import pytest

from air.sandbox.process.box import ProcessBox
from air.worlds import ResearchWorld
from tests.unit.worlds.conftest import MakeWorld, do
from tests.until import until

SOLVE = 'echo "method=2 level=2" > config; python3 solve.py'
WATCHED = 0.5  # a shell appends thousands of lines in this time
BEAT = "(while :; do echo >> beat; done) > /dev/null 2>&1 &"
BETTER = 'echo "method=4 level=2" > config; python3 solve.py'


async def test_both_splits_grade_the_bytes_that_were_collected_once(make_world: MakeWorld) -> None:
    world = await make_world()
    await do(world, SOLVE)
    step = await do(world, "submit")
    assert step.validation is not None
    await world.box.exec("echo swapped > submission.csv", timeout=60)
    await world.finish()
    assert world.test_score is not None
    assert world.test_artefact[0] == step.validation.digest != ""


@pytest.mark.slow
async def test_the_best_validated_artefact_counts_whatever_is_done_after_it(
    make_world: MakeWorld,
) -> None:
    """It cannot be exchanged, spoilt or deleted any more; a worse one that is submitted does not count."""
    world, last = await make_world(), await make_world()
    for one, counts in ((world, "best"), (last, "last")):
        one.counts = counts
        await do(one, BETTER)
        await do(one, "validate")
        await do(one, "python3 -c \"open('submission.csv', 'a').write('0,1\\n')\"")
        await do(one, "validate")
        await do(one, f"{SOLVE}; ls")
        await do(one, "submit")
        await one.box.exec("rm submission.csv", timeout=60)
    best, spoilt, submitted = (v.digest for v in world.validations)
    assert len({best, spoilt, submitted}) == 3
    carried = world.fork(world.box)
    for one in (world, last, carried):
        await one.finish()
    assert (world.counted_validate, last.counted_validate) == (0, 2)
    assert (world.test_artefact[0], last.test_artefact[0]) == (best, submitted)
    assert None is not world.test_score == carried.test_score != last.test_score


async def test_without_a_score_the_last_artefact_counts(make_world: MakeWorld) -> None:
    world = await make_world()
    world.counts = "best"
    await do(world, "echo spoilt > submission.csv")
    await do(world, "validate")
    await world.box.exec("rm submission.csv", timeout=60)
    await world.finish()
    assert [v.score for v in world.validations] == [None, None]
    assert (world.test_score, world.test_artefact) == (None, ("", ""))


@pytest.mark.slow
@pytest.mark.parametrize("outlasts", [True, False])
async def test_a_grading_goes_on_without_its_caller_only_where_it_must(
    make_world: MakeWorld, outlasts: bool
) -> None:
    world = await make_world()
    world.outlasts_caller = outlasts
    await do(world, SOLVE)
    asking = asyncio.create_task(world.validate())
    await asyncio.sleep(0)  # it has begun
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert not world.validations
    await world.finish()
    assert [v.automatic for v in world.validations] == ([False, True] if outlasts else [True])
    assert world.test_score is not None


class Watch:
    """Looks at each grading, before the grader starts, whether the file `beat` grows."""

    def __init__(self, world: ResearchWorld) -> None:
        assert isinstance(world.box, ProcessBox)
        self.beat = world.box.host_workspace / "beat"
        self.grown: list[bool] = []
        world.keep = self.keep

    @property
    def size(self) -> int:
        return self.beat.stat().st_size if self.beat.exists() else 0

    def keep(self, _digest: str, _files: Mapping[str, bytes]) -> str:
        before = self.size
        time.sleep(WATCHED)
        self.grown.append(self.size > before)
        return ""


async def test_what_an_agent_left_running_stands_still_while_its_artefact_is_graded(
    make_world: MakeWorld,
) -> None:
    world = await make_world()
    watch = Watch(world)
    await do(world, SOLVE)
    await do(world, f"{BEAT} echo on")
    await until(lambda: watch.size > 0)
    step = await do(world, "validate")
    assert step.validation is not None
    assert step.validation.score is not None
    assert watch.grown == [False]
    before = watch.size
    await until(lambda: watch.size > before)  # it goes on afterwards
    assert (await do(world, "echo works")).code == 0
    await do(world, "submit")
    await world.finish()
    assert watch.grown == [False] * 3
    assert world.test_score is not None


async def test_a_grading_beside_running_processes_counts_as_the_agents_time(
    make_world: MakeWorld,
) -> None:
    """Reading the artefact counts: the processes run on meanwhile."""
    world = await make_world()
    await do(world, SOLVE)
    await do(world, "validate")
    assert 0.0 < world.times.grading_beside_agent < world.times.grading
