"""Every shipped world keeps the rules of worlds, and the checks find those that do not."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import pytest

from air.actions import Action
from air.testing import Letters
from air.worlds import conformance, sources
from air.worlds.base import Observation, Step


def shipped() -> list[str]:
    """The ids of all worlds that ship and need no server."""
    names = ["air.testing:letters"]
    for prefix in sources.SOURCES:
        names += [f"{prefix}:{name}" for name in sources.source(prefix).names()]
    return names


@pytest.mark.parametrize("task_id", shipped())
async def test_every_world_conforms(task_id: str) -> None:
    assert await conformance.check(sources.load(task_id)) == {}


class Raises(Letters):
    async def step(self, action: Action) -> Step:
        int(action.answer)
        return await super().step(action)


class Forgets(Letters):
    async def reset(self, seed: int) -> Observation:
        return await super().reset(7)


class Chance(Letters):
    async def reset(self, seed: int) -> Observation:
        return await super().reset(random.randrange(1000))


class Endless(Letters):
    async def step(self, action: Action) -> Step:
        step = await super().step(action)
        return dataclasses.replace(step, observation=Observation("x" * 30_000))


class Pays(Letters):
    async def step(self, action: Action) -> Step:
        return dataclasses.replace(await super().step(action), reward=1.0)


class Unsure(Letters):
    def facts(self) -> dict[str, float]:
        return {"success": float("nan"), "num_actions": 0.0}


class Renames(Letters):
    def facts(self) -> dict[str, float]:
        return {"won": 1.0}


class ClosesOnce(Letters):
    closed = False

    async def close(self) -> dict[str, Any]:
        assert not self.closed
        self.closed = True
        return {}


@pytest.mark.parametrize(
    ("make", "check", "words"),
    [
        (Raises, "any_action_is_answered", "raised ValueError"),
        (Forgets, "different_seeds_differ", "same episode"),
        (Chance, "same_seed_same_episode", "differ"),
        (Chance, "numbers_are_drawn_from_generators_of_its_own", "global generator"),
        (Chance, "many_play_at_once", "differs"),
        (Endless, "any_action_is_answered", "30000 characters"),
        (Pays, "a_step_after_the_end_gives_nothing", "the reward 1.0 after the end"),
        (Unsure, "facts_are_numbers_with_fixed_names", "no finite number"),
        (Renames, "facts_are_numbers_with_fixed_names", "does not declare"),
        (ClosesOnce, "closes_at_any_time", "AssertionError"),
    ],
)
async def test_a_world_that_breaks_a_rule_is_found(
    make: Callable[[], Letters], check: str, words: str
) -> None:
    random.seed(0)
    task = dataclasses.replace(sources.load("air.testing:letters"), make=make)
    assert words in (await conformance.check(task, checks=[check]))[check]
