"""Research tasks pass the conformance suite of worlds, too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import verifiers.v1 as vf

from air.actions.base import Action
from air.env.environment import ResearchEnv
from air.worlds import conformance
from air.worlds.base import World
from air.worlds.research.observations import BOX_ENDED, OVER
from air.worlds.research.world import ResearchWorld
from air.worlds.sources import WorldTask
from tests.e2e.conftest import research
from tests.e2e.episodes.test_attribution import STAY, end_guest

TASK = "titanic"
EXCEPT = {
    "different_seeds_differ": "a research task is the same with every seed",
    "facts_are_numbers_with_fixed_names": "an artefact without a score has no fact `score`",
}
"""The checks that do not concern research tasks, with the reasons."""
IN_CONTAINERS = {
    "closes_at_any_time",
    "a_step_after_the_end_gives_nothing",
    "a_cancelled_step_leaves_a_world_that_closes",
}
"""The checks that run in containers, too. Each of the many episodes of the others needs its own."""
SCORES = dict.fromkeys(("score", "best_score", "test_score"), "a score of the artefact")
PLAYED = (
    Action(script="ls; cat solve.py | head -5"),
    Action(script="python3 solve.py", ending="validate"),
    Action(ending="validate"),
    Action(script="rm -rf * .[!.]*", ending="validate"),
    Action(script="mkdir submission.csv", ending="submit"),
)
"""An episode that improves its artefact, deletes it, and submits what is none."""


def _never() -> World[Action]:
    raise AssertionError("a research task's world is made in a box")


def _task(turns: int) -> WorldTask:
    """A description of the research task for the suite. The task's own box, limits and prompt are used."""
    return WorldTask(
        id=TASK,
        instructions="",
        digest="",
        replays=True,  # the actions below take nothing from a clock or from chance
        max_turns=turns,
        make=_never,
        facts=SCORES,
    )


def environment(runtime: str) -> ResearchEnv:
    settings = research([TASK], runtime, max_boxes=conformance.AT_ONCE, grader_boxes=2)
    env = vf.load_environment(settings)
    assert isinstance(env, ResearchEnv)
    return env


@asynccontextmanager
async def opened(env: ResearchEnv) -> AsyncIterator[ResearchWorld]:
    """A world of the task, in a box."""
    spec = env.spec(TASK)
    async with env.lease(spec) as box:
        world = env.world(spec, box)
        try:
            yield world
        finally:
            await world.abandon()


async def test_a_research_task_conforms(runtime: str) -> None:
    env = environment(runtime)
    texts = tuple(Action(script=text) for text in conformance.TEXTS)
    actions = (*PLAYED, *texts)
    checks = [
        name
        for name in conformance.CHECKS
        if name not in EXCEPT and (runtime == "subprocess" or name in IN_CONTAINERS)
    ]
    async with env.serving():
        problems = await conformance.check(
            _task(len(PLAYED)), actions, checks, opened=lambda _: opened(env)
        )
    assert not problems


async def test_after_the_end_of_its_box_nothing_more_is_graded() -> None:
    env = environment("subprocess")
    async with env.serving(), opened(env) as world:
        await world.reset(0)
        await world.step(Action(script=STAY.split("\n")[2]))
        await asyncio.to_thread(end_guest)
        texts = [
            (await world.step(action)).observation.text
            for action in (Action(script="true"), Action(ending="submit"))
        ]
        assert texts == [BOX_ENDED, OVER]
        assert not world.validations
        await world.finish()
        (missing,) = world.validations
        assert (missing.automatic, missing.score, missing.delta) == (True, None, -1.0)
        assert (await world.step(Action(ending="validate"))).validation is None
