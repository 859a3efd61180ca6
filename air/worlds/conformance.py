"""Conformance checks for worlds that need no box. Users can run them on their own worlds.

`check(task)` runs all checks and returns the problems found; an empty result means that the world conforms:

    problems = asyncio.run(conformance.check(sources.load("my_worlds:maze")))
    assert not problems

By default the checks use actions that are meaningless in most worlds. The parameter `actions` adds
meaningful actions.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from air.actions.base import Action, ToolCall
from air.errors import ConfigError, InfrastructureError
from air.worlds.base import Step, World
from air.worlds.sources import WorldTask

MOST_CHARACTERS = 20_000
"""The maximum length of an observation, in characters."""
AT_ONCE = 64
SEEDS = range(8)
RESERVED = frozenset(
    {
        "turns",
        "format_errors",
        "cut_observations",
        "cut_replies",
        "context_ends",
        "infrastructure_errors",
        "close_errors",
        "seconds_agent",
        "seconds_exec",
        "seconds_model",
        "score",
        "reward",
    }
)
"""The names of the metrics that every episode has. A world's facts (the numbers that `World.facts` returns)
must have other names."""
TEXTS = (
    "10", "5", "0", "-1", "up", "Up || Down || Left || Right", "look", "a b c", "None", "nan", "1e999", "||",
    "|| ||", "<answer>", "</answer>", "```", "{}", '{"name": "x"}', "[1, 2", "SELECT 1", "'; --",
    "\n\n", " ", "\t", "é 漢字 🙂", "\x00", "x" * 50_000,
)  # fmt: skip
"""Answers that the checks send as actions. Most of them are meaningless to a world."""
_ARGUMENTS: tuple[Mapping[str, Any] | None, ...] = (
    None, {}, {"x": 1}, {"action": None}, {"text": "x" * 50_000}, {"a": [{}]}
)  # fmt: skip


class Violation(Exception):
    """Raised by a check that a world does not pass. The message describes the problem."""


@dataclass(frozen=True)
class Case:
    """The input of a check: the task of a world, and the actions that the check sends."""

    task: WorldTask
    actions: Sequence[Action]
    """The actions that a check sends in order, starting again after the last one."""


Check = Callable[[Case], Awaitable[None]]


def strange_actions(task: WorldTask) -> list[Action]:
    """Returns unusual actions that a model could write: odd texts and, in a world with tools, calls with
    odd arguments of each tool and of a tool that does not exist."""
    texts = [Action(answer=text) for text in TEXTS]
    if not task.tools:
        return texts
    names = [str(tool.get("function", tool).get("name", "")) for tool in task.tools]
    calls = [
        Action(tool=ToolCall(name, arguments=arguments))
        for name in [*names, "no_such_tool"]
        for arguments in _ARGUMENTS
    ]
    return [*calls, *texts] if task.answers else calls


async def check(
    task: WorldTask, actions: Sequence[Action] = (), checks: Iterable[str] | None = None
) -> dict[str, str]:
    """Runs checks on a world. Returns a dict from the name of each failed check to a description of the
    problem.

    `actions` are sent before the actions of `strange_actions`; they can be legal moves, for example. `checks`
    are the names of the checks to run (None: all in `CHECKS`). Raises ConfigError if the world needs a box:
    the checks run up to 64 episodes at the same time, and there may be fewer boxes. Raises
    InfrastructureError if something else that the world needs, such as a server, is missing.
    """
    if task.in_boxes:
        raise ConfigError("a world in a box is not checked here", where=task.id)
    case = Case(task, [*actions, *strange_actions(task)])
    problems = {}
    for name in CHECKS if checks is None else checks:
        try:
            await CHECKS[name](case)
        except Violation as violation:
            problems[name] = str(violation)
        except InfrastructureError:
            raise  # what the world needs, such as a server, is not there
        except Exception as error:
            problems[name] = f"raised {type(error).__name__}: {error}"
    return problems


@dataclass
class EpisodeRecord:
    """The record of an episode that a check has run: the texts of its observations (one more than there are
    steps), the rewards, the values of `done`, and the facts."""

    texts: list[str]
    rewards: list[float]
    done: list[bool]
    facts: dict[str, float]


async def play(case: Case, seed: int, turns: int | None = None) -> EpisodeRecord:
    """Runs one episode with `case.actions` until the world ends it or `turns` turns have passed (None: the
    task's maximum number of turns). Returns a record of the episode."""
    world = case.task.world()
    try:
        first = await world.reset(seed)
        played = EpisodeRecord([first.text], [], [], {})
        for number in range(case.task.max_turns if turns is None else turns):
            step = await world.step(case.actions[number % len(case.actions)])
            played.texts.append(step.observation.text)
            played.rewards.append(step.reward)
            played.done.append(step.done)
            if step.done:
                break
        played.facts = dict(world.facts())
        return played
    finally:
        await world.close()


async def same_seed_same_episode(case: Case) -> None:
    """Check: if `WorldTask.replays` is true, the same seed and actions give the same observations, rewards
    and facts."""
    if case.task.replays and await play(case, 3) != await play(case, 3):
        raise Violation("the task says that it replays, but two episodes with one seed differ")


async def different_seeds_differ(case: Case) -> None:
    """Check: the seeds 0 to 7 do not all give the same episode."""
    if len({str(await play(case, seed)) for seed in SEEDS}) == 1:
        raise Violation(f"the seeds {SEEDS.start} to {SEEDS.stop - 1} all give the same episode")


async def any_action_is_answered(case: Case) -> None:
    """Check: any action, even a meaningless one, gives a finite reward and an observation of limited length,
    and raises no exception."""
    world = await _started(case)
    try:
        for action in case.actions:
            try:
                step = await world.step(action)
            except InfrastructureError:
                raise
            except Exception as error:
                raise Violation(
                    f"{_short(action)} raised {type(error).__name__}: {error}"
                ) from error
            _check_step(step, action)
            if step.done:
                await world.close()
                world = await _started(case)
    finally:
        await world.close()


async def a_step_after_the_end_gives_nothing(case: Case) -> None:
    """Check: a step after the end of an episode returns a `Step` with `done` true and the reward 0."""
    world = await _started(case)
    try:
        for number in range(10 * case.task.max_turns):
            if (await world.step(case.actions[number % len(case.actions)])).done:
                break
        else:
            return  # only the harness ends such an episode
        step = await world.step(case.actions[0])
        if not step.done or step.reward:
            raise Violation(f"gave done={step.done} and the reward {step.reward} after the end")
    finally:
        await world.close()


async def closes_at_any_time(case: Case) -> None:
    """Check: a world can be closed before `reset`, and more than once, and its facts can be read after it
    was closed."""
    fresh = case.task.world()
    await fresh.close()
    await fresh.close()
    world = await _started(case)
    await world.close()
    await world.close()
    _check_facts(case.task, world.facts())


async def a_cancelled_step_leaves_a_world_that_closes(case: Case) -> None:
    """Check: a world can be closed after a step was cancelled."""
    world = await _started(case)
    step: asyncio.Future[Step] = asyncio.ensure_future(world.step(case.actions[0]))
    await asyncio.sleep(0)
    step.cancel()
    await asyncio.gather(step, return_exceptions=True)
    async with asyncio.timeout(60):
        await world.close()


async def many_play_at_once(case: Case) -> None:
    """Check: 64 episodes, of up to 3 turns each, can run at the same time. If `WorldTask.replays` is true,
    each episode must equal the episode with the same seed that runs alone."""
    few = Case(case.task, case.actions)
    at_once = await asyncio.gather(*(play(few, seed % 8, 3) for seed in range(AT_ONCE)))
    if not case.task.replays:
        return
    alone = [await play(few, seed, 3) for seed in SEEDS]
    if any(played != alone[place % 8] for place, played in enumerate(at_once)):
        raise Violation("an episode that is played with 63 others differs from the same one alone")


async def facts_are_numbers_with_fixed_names(case: Case) -> None:
    """Check: facts are finite numbers, all episodes have facts with the same names, `WorldTask.facts`
    explains each name, and no name is in `RESERVED`."""
    if taken := RESERVED & set(case.task.facts):
        raise Violation(f"the facts {sorted(taken)} have names of air's own metrics")
    names = set()
    for seed in SEEDS:
        facts = (await play(case, seed)).facts
        _check_facts(case.task, facts)
        names.add(tuple(sorted(facts)))
    if len(names) > 1:
        raise Violation(f"the names of the facts differ between episodes: {sorted(names)}")


async def numbers_are_drawn_from_generators_of_its_own(case: Case) -> None:
    """Check: a world neither uses nor seeds Python's global random generator."""
    before = random.getstate()
    await play(case, 5)
    if random.getstate() != before:
        raise Violation("uses the global generator of `random`; use random.Random(seed)")


async def _started(case: Case) -> World[Action]:
    world = case.task.world()
    first = await world.reset(1)
    _check_text(first.text)
    return world


def _check_step(step: Step, action: Action) -> None:
    _check_text(step.observation.text)
    if not math.isfinite(step.reward):
        raise Violation(f"{_short(action)} gave the reward {step.reward}")


def _check_text(text: str) -> None:
    if len(text) > MOST_CHARACTERS:
        raise Violation(f"an observation has {len(text)} characters, more than {MOST_CHARACTERS}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Violation("an observation has a lone surrogate, which no server accepts") from None


def _check_facts(task: WorldTask, facts: Mapping[str, float]) -> None:
    for name, value in facts.items():
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise Violation(f"the fact {name} is {value!r}, no finite number")
    if unknown := sorted(set(facts) - set(task.facts)):
        raise Violation(f"has the facts {unknown}, which the task does not declare")


def _short(action: Action) -> str:
    return f"the action {action.text[:60]!r}"


CHECKS: Mapping[str, Check] = {
    one.__name__: one
    for one in (
        same_seed_same_episode,
        different_seeds_differ,
        any_action_is_answered,
        a_step_after_the_end_gives_nothing,
        closes_at_any_time,
        a_cancelled_step_leaves_a_world_that_closes,
        many_play_at_once,
        facts_are_numbers_with_fixed_names,
        numbers_are_drawn_from_generators_of_its_own,
    )
}
"""All check functions, by name."""
