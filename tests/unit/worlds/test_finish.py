"""The end of a research world: one artefact for both splits, and gradings that outlast their caller."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.worlds.conftest import MakeWorld, do

SOLVE = 'echo "method=2 level=2" > config; python3 solve.py'
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
