"""Checks that a world (an environment in which an agent acts) satisfies the interface `World`. Users can run
the checks on their own worlds.

`check(task)` runs all checks and returns the problems found; an empty result means that the world conforms:

    problems = asyncio.run(conformance.check(sources.load("my_worlds:maze")))
    assert not problems

The checks send unusual actions, which are meaningless in most worlds. If the task has a scripted player
(`WorldTask.player`), its actions and the unusual ones alternate. For a task without a player, the caller can
pass meaningful actions as `actions`. `opened` provides the boxes (isolated places for commands, such as
containers) of a world that needs them.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from air.actions.base import Action, ToolCall
from air.errors import ConfigError, InfrastructureError
from air.worlds.base import Step, World
from air.worlds.sources import WorldTask

MOST_CHARACTERS = 20_000
"""The maximum length, in characters, of an observation that passes the checks."""
AT_ONCE = 64
"""The number of episodes that the check `many_play_at_once` runs at the same time, by default."""
SEEDS = range(8)
TWICE = range(4)
"""The seeds of the episodes in the checks `same_seed_same_episode`, which runs each episode twice, and
`a_step_after_the_end_gives_nothing`."""
INTERRUPTIONS = (1, 2, 5, 20)
"""How long a call runs before a check cancels it, in turns of the event loop. A check tries each of these
delays in turn."""
CLOSE_SECONDS = 60
"""The time limit for `World.close` after a cancelled call, in seconds."""
SHARES = ("action_is_valid", "action_is_effective")
"""The names of two facts (numbers that `World.facts` returns): the share of actions that the world could
carry out, and the share of actions that had an effect."""
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


Opened = Callable[[WorldTask], AbstractAsyncContextManager[World[Action]]]
"""The type of a function that takes a task and returns an async context manager. The manager yields a new
world of the task, and provides the boxes (isolated places for commands) that this world needs."""


@asynccontextmanager
async def without_boxes(task: WorldTask) -> AsyncIterator[World[Action]]:
    """Async context manager: yields a new world of a task that needs no box. Raises ConfigError if the task
    needs one."""
    yield task.world()


@dataclass(frozen=True)
class Case:
    """The input of a check: the task whose worlds (agents' environments) are checked, and the actions that
    the check sends."""

    task: WorldTask
    actions: Sequence[Action]
    """The actions that a check sends in order, starting again after the last one."""
    at_once: int = AT_ONCE
    """The number of episodes that run at the same time in the check `many_play_at_once`."""
    opened: Opened = without_boxes

    @asynccontextmanager
    async def world(self) -> AsyncIterator[World[Action]]:
        """Async context manager: yields a new world of the task, and closes the world after the block."""
        async with self.opened(self.task) as world:
            try:
                yield world
            finally:
                await world.close()


class Chooser:
    """Chooses the actions of one episode of `world`, which has been reset with `seed`.

    If the task has a scripted player, the player's actions and those in `case.actions` alternate. The player
    begins if `seed` is odd, and the first action taken from `case.actions` depends on the seed. Without a
    player, all actions come from `case.actions`, in order.
    """

    def __init__(self, case: Case, world: World[Action], seed: int) -> None:
        player = case.task.player
        self._player = None if player is None else player(world, seed)
        self._others = deque(case.actions)
        if self._player is not None:
            self._others.rotate(-3 * seed)
        self._players_turn = seed % 2 == 1

    def next(self, text: str) -> Action:
        """Returns the next action. `text` is the latest observation."""
        turn, self._players_turn = self._players_turn, not self._players_turn
        return (self.of_player(text) if turn else None) or self._other()

    def of_player(self, text: str) -> Action | None:
        """Returns the scripted player's next action. `text` is the latest observation. Returns None if there
        is no player, or if the player has no further action because the other actions disturbed its plan."""
        try:
            return None if self._player is None else self._player(text)
        except StopIteration:
            return None

    def _other(self) -> Action:
        self._others.rotate(-1)
        return self._others[-1]


Check = Callable[[Case], Awaitable[None]]


def strange_actions(task: WorldTask) -> list[Action]:
    """Returns unusual actions that a model could write: for a world without tools, unusual answers (`TEXTS`);
    for a world with tools, calls of each tool and of a tool that does not exist, with unusual arguments, and
    the answers only if the task accepts answers."""
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
    task: WorldTask,
    actions: Sequence[Action] = (),
    checks: Iterable[str] | None = None,
    at_once: int = AT_ONCE,
    opened: Opened = without_boxes,
) -> dict[str, str]:
    """Runs checks on the world of `task`. Returns a dict from the name of each failed check to a description
    of the problem.

    `actions` are sent before the actions of `strange_actions`; they can be legal moves, for example. `checks`
    are the names of the checks to run (None: all in `CHECKS`). `at_once` is the maximum number of episodes
    that run at the same time; choose a small number for a world whose episodes are slow, such as a world on a
    server. `opened` makes the world of each episode; for a world that needs boxes (isolated places for
    commands), it can be `WorldBoxes.world`. Raises ConfigError if the world needs a box and `opened` provides
    none. Raises InfrastructureError if something else that the world needs, such as a server, is missing.
    """
    if task.in_boxes and opened is without_boxes:
        raise ConfigError("needs boxes: give the parameter `opened`", where=task.id)
    case = Case(task, [*actions, *strange_actions(task)], at_once, opened)
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
    """The record of an episode that a check has run: the texts of the first observation and of each step's
    observation, the reward and the value of `done` of each step, and the facts (numbers about the episode, by
    name) at the end."""

    texts: list[str]
    rewards: list[float]
    done: list[bool]
    facts: dict[str, float]


async def play(
    case: Case, seed: int, turns: int | None = None, *, with_player: bool = True
) -> EpisodeRecord:
    """Runs one episode until the world ends it or `turns` turns have passed (None: the task's maximum number
    of turns), and returns a record of it. The actions of the task's scripted player and those in
    `case.actions` alternate. If there is no player, or `with_player` is false, all actions are those in
    `case.actions`."""
    if not with_player:
        case = replace(case, task=replace(case.task, player=None))
    async with case.world() as world:
        first = await world.reset(seed)
        played, choose = EpisodeRecord([first.text], [], [], {}), Chooser(case, world, seed)
        for _ in range(case.task.max_turns if turns is None else turns):
            step = await world.step(choose.next(played.texts[-1]))
            played.texts.append(step.observation.text)
            played.rewards.append(_reward(step))
            played.done.append(step.done)
            if step.done:
                break
        played.facts = dict(world.facts())
        return played


async def same_seed_same_episode(case: Case) -> None:
    """Checks that the same seed and actions give the same observations, rewards and facts (numbers about the
    episode). Does so only if `WorldTask.replays` is true. Raises Violation if they do not."""
    for seed in TWICE if case.task.replays else ():
        if await play(case, seed) != await play(case, seed):
            raise Violation("the task says that it replays, but two episodes with one seed differ")


async def different_seeds_differ(case: Case) -> None:
    """Checks that the seeds 0 to 7, with the same actions, do not all give the same episode. Raises Violation
    if they do."""
    if len({str(await play(case, seed, with_player=False)) for seed in SEEDS}) == 1:
        raise Violation(f"the seeds {SEEDS.start} to {SEEDS.stop - 1} all give the same episode")


async def the_player_has_an_effect(case: Case) -> None:
    """Checks that the actions of the task's scripted player, if there is one, have an effect, because the
    other checks would otherwise test no meaningful action. In each episode that the player begins, those of
    the facts (numbers about the episode) in `SHARES` that the task has must not be 0. If the task has neither
    fact, at least one of these episodes must have a positive reward or be a success. Raises Violation if this
    is not so."""
    if case.task.player is None:
        return
    shares = [name for name in SHARES if name in case.task.facts]
    episodes = [await play(case, seed) for seed in SEEDS if seed % 2 == 1]
    for name in shares:
        if any(not played.facts.get(name) for played in episodes):
            raise Violation(f"the player plays, but the fact {name} is 0")
    gains = (max([*played.rewards, played.facts.get("success", 0.0)]) for played in episodes)
    if not shares and max(gains) <= 0:
        raise Violation("the player plays, but it earns nothing and has no success")


async def any_action_is_answered(case: Case) -> None:
    """Checks that each action in `case.actions`, even a meaningless one, gives a finite reward and an
    observation of limited length, and raises no exception. Actions of the scripted player, if there is one,
    are sent between the others. Raises Violation if an action fails."""
    others, seed = deque(case.actions), 0
    while others:
        seed += 1
        async with case.world() as world:
            text = (await world.reset(seed)).text
            _check_text(text)
            choose, turn, done = Chooser(case, world, seed), seed, False
            while others and not done:
                action = choose.of_player(text) if turn % 2 else None
                step = await _answered(world, action or others.popleft())
                text, turn, done = step.observation.text, turn + 1, step.done


async def _answered(world: World[Action], action: Action) -> Step:
    """Sends an action and returns the world's result. Raises Violation if the action raises an exception
    other than InfrastructureError, or if the reward or the observation is invalid."""
    try:
        step = await world.step(action)
    except InfrastructureError:
        raise
    except Exception as error:
        raise Violation(f"{_short(action)} raised {type(error).__name__}: {error}") from error
    _check_step(step, action)
    return step


async def a_step_after_the_end_gives_nothing(case: Case) -> None:
    """Checks that a step after the end of an episode returns a `Step` with `done` true and the reward 0, and
    grades nothing. The action that ended the episode is sent again, because it may have won the episode, and
    must not be rewarded twice; then another action is sent. Raises Violation if a step gives more."""
    for seed in TWICE:
        async with case.world() as world:
            text = (await world.reset(seed)).text
            choose = Chooser(case, world, seed)
            for _ in range(10 * case.task.max_turns):
                last = choose.next(text)
                step = await world.step(last)
                text = step.observation.text
                if step.done:
                    await _check_ended(world, (last, case.actions[0]))
                    break
            # Otherwise only the harness ends such an episode.


async def _check_ended(world: World[Action], actions: Iterable[Action]) -> None:
    for action in actions:
        step = await world.step(action)
        if not step.done or step.reward:
            raise Violation(f"gave done={step.done} and the reward {step.reward} after the end")
        if step.validation is not None:
            raise Violation(f"graded an artefact after the end: {step.validation}")


async def closes_at_any_time(case: Case) -> None:
    """Checks that a world can be closed before `reset`, and more than once, and that its facts (numbers about
    the episode) can be read after it was closed. If one of these calls fails, the world's own exception is
    raised."""
    async with case.world() as fresh:
        await fresh.close()
        await fresh.close()
    async with case.world() as world:
        _check_text((await world.reset(1)).text)
        await world.close()
        await world.close()
        _check_facts(case.task, world.facts())


async def a_cancelled_reset_leaves_a_world_that_closes(case: Case) -> None:
    """Checks that a world can be closed, within `CLOSE_SECONDS`, after a call of its `reset` was cancelled.
    Raises Violation if it cannot."""
    for turns in INTERRUPTIONS:
        async with case.opened(case.task) as world:
            await _cancelled(world.reset(1), turns)
            await _closed_in_time(world)


async def a_cancelled_step_leaves_a_world_that_closes(case: Case) -> None:
    """Checks that a world can be closed, within `CLOSE_SECONDS`, after a call of its `step` was cancelled.
    Raises Violation if it cannot."""
    for turns in INTERRUPTIONS:
        async with case.opened(case.task) as world:
            await world.reset(1)
            await _cancelled(world.step(case.actions[0]), turns)
            await _closed_in_time(world)


async def _cancelled(call: Coroutine[Any, Any, Any], turns: int) -> None:
    """Runs the coroutine `call` for `turns` turns of the event loop, cancels it, and waits until it has
    ended."""
    running = asyncio.ensure_future(call)
    for _ in range(turns):
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def _closed_in_time(world: World[Action]) -> None:
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await world.close()
    except TimeoutError:
        raise Violation(f"was not closed within {CLOSE_SECONDS} s") from None


async def many_play_at_once(case: Case) -> None:
    """Checks that `case.at_once` episodes of a world can run at the same time, by running that many for up to
    3 turns each. If the world promises the same episode for the same seed and actions (`WorldTask.replays`),
    also checks that each is equal to an episode with the same seed that runs alone. Raises Violation if one
    differs."""
    at_once = await asyncio.gather(
        *(play(case, place % len(SEEDS), 3) for place in range(case.at_once))
    )
    if not case.task.replays:
        return
    alone = [await play(case, seed, 3) for seed in SEEDS[: case.at_once]]
    if any(played != alone[place % len(SEEDS)] for place, played in enumerate(at_once)):
        raise Violation("an episode that is played with others differs from the same one alone")


async def facts_are_numbers_with_fixed_names(case: Case) -> None:
    """Checks that the facts that `World.facts` returns are finite numbers, that all episodes have facts with
    the same names, that `WorldTask.facts` explains each name, and that no name is in `RESERVED`. Raises
    Violation if this is not so."""
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
    """Checks that a world neither draws from nor seeds Python's global random generator, whose state must be
    the same after an episode as before. Raises Violation if it is not."""
    before = random.getstate()
    await play(case, 5)
    if random.getstate() != before:
        raise Violation("uses the global generator of `random`; use random.Random(seed)")


def _check_step(step: Step, action: Action) -> None:
    _check_text(step.observation.text)
    if not math.isfinite(reward := _reward(step)):
        raise Violation(f"{_short(action)} gave the reward {reward}")


def _reward(step: Step) -> float:
    """Returns the reward for an action, including the reward for a grading that the action caused, as in
    research tasks."""
    return step.reward + (0.0 if step.validation is None else step.validation.delta)


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
        the_player_has_an_effect,
        any_action_is_answered,
        a_step_after_the_end_gives_nothing,
        closes_at_any_time,
        a_cancelled_reset_leaves_a_world_that_closes,
        a_cancelled_step_leaves_a_world_that_closes,
        many_play_at_once,
        facts_are_numbers_with_fixed_names,
        numbers_are_drawn_from_generators_of_its_own,
    )
}
"""All check functions, by name. Each takes a `Case` and raises Violation if the world does not pass."""
