"""Every shipped world keeps the rules of worlds, and the checks find those that do not."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from air.actions import Action
from air.testing import Letters
from air.worlds import conformance, sources
from air.worlds.base import Observation, Step, Validation


def shipped() -> list[str]:
    """The ids of all worlds that ship and need no server."""
    names = ["air.testing:letters"]
    for prefix in sources.SOURCES:
        names += [f"{prefix}:{name}" for name in sources.source(prefix).names()]
    return names


WITH_OPTIONS = [
    "game:sokoban6-level1-turns2",
    "game:sokoban5-depth3-moves1",
    "game:sokoban6-boxes2-level2-turns9",
    "game:tetris1-level2-turns3",
    "game:tetris1-size3-level1-total9",
    "game:tetris2-size3-level2-moves1",
    "game:blocksworld-text-blocks2",
    "game:blocksworld-1d-blocks4-level3-turns1",
    "game:blocksworld-2d-level2-total3",
]
"""Games with each of their options."""


@pytest.mark.parametrize("task_id", [*shipped(), *WITH_OPTIONS])
async def test_every_world_conforms(task_id: str) -> None:
    assert await conformance.check(sources.load(task_id)) == {}


@pytest.mark.parametrize("kind", ["gsm8k", "gsm8k5"])
async def test_problems_of_a_file_conform(kind: str, tmp_path: Path) -> None:
    rows = [{"question": f"What is {n} + 1?", "answer": f"#### {n + 1}"} for n in range(30)]
    file = tmp_path / "problems.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert await conformance.check(sources.load(f"question:{kind}@{file}")) == {}


@pytest.mark.parametrize("kind", ["sql", "sql5"])
async def test_questions_of_a_folder_of_bird_conform(kind: str, tmp_path: Path) -> None:
    place = tmp_path / "dev_databases" / "library"
    place.mkdir(parents=True)
    connection = sqlite3.connect(place / "library.sqlite")
    connection.execute("CREATE TABLE books (id INTEGER PRIMARY KEY, title TEXT)")
    connection.execute("INSERT INTO books VALUES (1, 'A'), (2, 'B')")
    connection.commit()
    connection.close()
    rows = [
        {
            "question_id": n,
            "db_id": "library",
            "question": f"What is {n} plus the least id?",
            "evidence": "",
            "SQL": f"SELECT {n} + MIN(id) FROM books",
            "difficulty": "simple",
        }
        for n in range(30)
    ]
    (tmp_path / "dev.json").write_text(json.dumps(rows))
    assert await conformance.check(sources.load(f"question:{kind}@{tmp_path}")) == {}


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


class Grades(Letters):
    async def step(self, action: Action) -> Step:
        validation = Validation(score=1.0, phi=1.0, delta=0.0)
        return dataclasses.replace(await super().step(action), validation=validation)


class GradesByChance(Letters):
    async def step(self, action: Action) -> Step:
        validation = Validation(score=1.0, phi=1.0, delta=random.random())
        return dataclasses.replace(await super().step(action), validation=validation)


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


class Held(Letters):
    """Holds something while it waits, and does not release it if it is cancelled."""

    held = False

    async def _wait(self) -> None:
        self.held = True
        await asyncio.sleep(0)
        self.held = False

    async def close(self) -> dict[str, Any]:
        assert not self.held
        return await super().close()


class HeldInReset(Held):
    async def reset(self, seed: int) -> Observation:
        await self._wait()
        return await super().reset(seed)


class HeldInStep(Held):
    async def step(self, action: Action) -> Step:
        await self._wait()
        return await super().step(action)


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
        (Grades, "a_step_after_the_end_gives_nothing", "graded an artefact after the end"),
        (GradesByChance, "same_seed_same_episode", "differ"),
        (Unsure, "facts_are_numbers_with_fixed_names", "no finite number"),
        (Renames, "facts_are_numbers_with_fixed_names", "does not declare"),
        (ClosesOnce, "closes_at_any_time", "AssertionError"),
        (HeldInReset, "a_cancelled_reset_leaves_a_world_that_closes", "AssertionError"),
        (HeldInStep, "a_cancelled_step_leaves_a_world_that_closes", "AssertionError"),
    ],
)
async def test_a_world_that_breaks_a_rule_is_found(
    make: Callable[[], Letters], check: str, words: str
) -> None:
    random.seed(0)
    task = dataclasses.replace(sources.load("air.testing:letters"), make=make)
    assert words in (await conformance.check(task, checks=[check]))[check]


class Meant(Letters):
    """Is itself unless an action has the word `letter`, which only the player of these tests says."""

    meant = False

    async def step(self, action: Action) -> Step:
        step = await super().step(action)
        if "letter" not in action.answer:
            return step
        self.meant = True
        return self.answered(step)

    def answered(self, step: Step) -> Step:
        return step


class RaisesIfMeant(Meant):
    def answered(self, step: Step) -> Step:
        raise ValueError("a legal move")


class ChanceIfMeant(Meant):
    def answered(self, step: Step) -> Step:
        return dataclasses.replace(step, reward=random.random())


class PaysAgainIfMeant(Meant):
    def answered(self, step: Step) -> Step:
        return dataclasses.replace(step, reward=1.0)


class UnsureIfMeant(Meant):
    def facts(self) -> dict[str, float]:
        return super().facts() | ({"success": float("inf")} if self.meant else {})


class Ignores(Letters):
    async def step(self, action: Action) -> Step:
        return await super().step(Action(answer=""))


class Invalid(Letters):
    def facts(self) -> dict[str, float]:
        return super().facts() | {"action_is_valid": 0.0}


@pytest.mark.parametrize(
    ("make", "check", "words"),
    [
        (RaisesIfMeant, "any_action_is_answered", "raised ValueError: a legal move"),
        (ChanceIfMeant, "same_seed_same_episode", "differ"),
        (ChanceIfMeant, "numbers_are_drawn_from_generators_of_its_own", "global generator"),
        (ChanceIfMeant, "many_play_at_once", "differs"),
        (PaysAgainIfMeant, "a_step_after_the_end_gives_nothing", "the reward 1.0 after the end"),
        (UnsureIfMeant, "facts_are_numbers_with_fixed_names", "no finite number"),
        (Ignores, "the_player_has_an_effect", "earns nothing"),
        (Invalid, "the_player_has_an_effect", "action_is_valid is 0"),
    ],
)
async def test_a_fault_that_only_the_players_actions_meet_is_found(
    make: Callable[[], Letters], check: str, words: str
) -> None:
    random.seed(0)
    letters = sources.load("air.testing:letters")
    named = {**letters.facts, **({"action_is_valid": ""} if make is Invalid else {})}
    task = dataclasses.replace(letters, make=make, facts=named)
    assert await conformance.check(task, checks=[check]) == {}
    plays = dataclasses.replace(task, player=lambda world, seed: lambda text: Action(answer=text))
    assert words in (await conformance.check(plays, checks=[check]))[check]


def test_each_check_has_a_world_that_fails_it() -> None:
    broken = {mark.args[1][n][1] for mark in _tables() for n in range(len(mark.args[1]))}
    assert broken == set(conformance.CHECKS)


def _tables() -> list[pytest.Mark]:
    tests: tuple[Any, ...] = (
        test_a_world_that_breaks_a_rule_is_found,
        test_a_fault_that_only_the_players_actions_meet_is_found,
    )
    return [mark for test in tests for mark in test.pytestmark if mark.name == "parametrize"]
