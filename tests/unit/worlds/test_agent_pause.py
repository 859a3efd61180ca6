"""What an agent leaves running in its box neither works nor slows the grader while its artefact is graded."""

from __future__ import annotations

import time
from collections.abc import Mapping

from air.sandbox.process.box import ProcessBox
from air.worlds import ResearchWorld
from tests.unit.worlds.conftest import MakeWorld, do
from tests.until import until

SOLVE = 'echo "method=2 level=2" > config; python3 solve.py'
WATCHED = 0.5  # a shell appends thousands of lines in this time
BEAT = "(while :; do echo >> beat; done) > /dev/null 2>&1 &"


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
