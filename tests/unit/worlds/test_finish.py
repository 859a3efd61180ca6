"""The end of a research world: one artefact for both splits, and gradings that outlast their caller."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.worlds.conftest import MakeWorld, do

SOLVE = 'echo "method=2 level=2" > config; python3 solve.py'


async def test_both_splits_grade_the_bytes_that_were_collected_once(make_world: MakeWorld) -> None:
    world = await make_world()
    await do(world, SOLVE)
    step = await do(world, "submit")
    assert step.validation is not None
    await world.box.exec("echo swapped > submission.csv", timeout=60)
    await world.finish()
    assert world.test_score is not None
    assert world.test_artefact[0] == step.validation.digest != ""


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
