"""Who caused an error, the agent or the server: the episode is repeated in other environments."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from air.errors import InfrastructureError
from air.worlds.remote.attribution import (
    REPETITIONS,
    SLOW,
    History,
    NoPlace,
    ServerLock,
    Unanswered,
    caused_by_agent,
    error_comes_again,
)


class Other:
    """Another environment. It shows `first`, then `results`; the kinds in `failures` are those of the actions
    with these numbers, from 0. A text in `away` is what prevents its start."""

    closed = 0

    def __init__(
        self,
        first: str = "a room",
        results: Sequence[str] = ("a hall", "a cellar"),
        failures: dict[int, str] | None = None,
        away: InfrastructureError | None = None,
    ) -> None:
        self.first, self.results, self.failures, self.away = first, results, failures or {}, away
        self.acted = 0

    async def begin(self) -> str:
        if self.away is not None:
            raise self.away
        return self.first

    async def act(self, sent: str) -> str:
        self.acted += 1
        if kind := self.failures.get(self.acted - 1, ""):
            raise Unanswered("out of memory", kind)
        return self.results[self.acted - 1]

    async def act_again(self, sent: str) -> None:
        await self.act(sent)

    async def check(self) -> None:
        raise AssertionError("nothing is checked")

    async def close(self) -> None:
        Other.closed += 1


SAME_ERROR, SUCCESS, BY_CHANCE = {1: "error"}, dict[int, str](), {0: "error"}


async def _asked(others: Sequence[Callable[[], Other]], own: str) -> tuple[bool, int, int]:
    """Returns whether the agent caused the second action's error, the number of other environments that were
    started, and how often the action was sent again in the episode's own, where its kind of failure is then
    `own`."""
    history = History()
    history.began("a room")
    history.answered("go north", "a hall")
    waiting, again = [make() for make in others], list[str]()
    left = len(waiting)
    before = Other.closed

    async def once_more() -> None:
        again.append(own)
        if own:
            raise Unanswered("out of memory", own)

    guilty = await error_comes_again(
        lambda: waiting.pop(0), history, "go down", "error", again=once_more
    )
    started = left - len(waiting)
    assert Other.closed - before == started
    return guilty, started, len(again)


async def test_an_equal_environment_decides() -> None:
    assert await _asked([lambda: Other(failures=SAME_ERROR)], "") == (True, 1, 0)
    assert await _asked([lambda: Other(failures=SUCCESS)], "error") == (False, 1, 0)
    assert await _asked([lambda: Other(failures={1: "other"})], "error") == (False, 1, 0)


@pytest.mark.parametrize(
    "different",
    [
        lambda: Other(first="a garden"),
        lambda: Other(first="a garden", failures={1: "other"}),
        lambda: Other(results=("a lake", "an island")),
        lambda: Other(failures=BY_CHANCE),
    ],
)
async def test_a_different_environment_decides_nothing(different: Callable[[], Other]) -> None:
    """A bad move must not end an episode because the server's other environments allow it."""
    all_differ = [different] * REPETITIONS
    assert await _asked(all_differ, "error") == (True, REPETITIONS, 1)
    assert await _asked(all_differ, "") == (False, REPETITIONS, 1)
    assert await _asked(all_differ, "other") == (False, REPETITIONS, 1)
    later = [different, lambda: Other(failures=SAME_ERROR)]
    assert await _asked(later, "") == (True, 2, 0)
    later = [different, lambda: Other(failures=SUCCESS)]
    assert await _asked(later, "error") == (False, 2, 0)


async def test_an_error_that_comes_again_in_a_different_environment_is_the_agents() -> None:
    """An agent that makes its observations differ, for example by the time, must not escape by an error that
    has only the first action of its kind in an environment."""
    for different in (partial(Other, first="a garden"), partial(Other, results=("a lake", "x"))):
        assert await _asked([partial(different, failures=SAME_ERROR)], "") == (True, 1, 0)


@pytest.mark.parametrize(("kind", "again"), [(SLOW, [True, True]), ("error", [False, False])])
async def test_only_a_slow_action_gets_less_time(kind: str, again: list[bool]) -> None:
    """An action that takes long before its error would not fail in the same way in half the time."""
    attempts: list[Halved] = []

    def attempt() -> Halved:
        attempts.append(Halved(failures={0: kind}))
        return attempts[-1]

    history = History()
    history.began("a room")
    lock = ServerLock()
    assert await caused_by_agent(attempt, history, "go down", kind, alone=lock)
    assert [one.halved for one in attempts[:2]] == again


async def test_while_an_episode_waits_for_a_place_no_other_waits_for_it() -> None:
    """On a full server, a place becomes free only if other episodes go on to their end."""
    lock, waited = ServerLock(), list[bool]()

    class Waiting(Halved):
        async def begin(self) -> str:
            waited.append(lock.locked())
            return await super().begin()

        async def act(self, sent: str) -> str:
            assert lock.locked() == (len(waited) == 2)
            return await super().act(sent)

    history = History()
    history.began("a room")
    attempts = partial(Waiting, failures={0: "error"})
    assert await caused_by_agent(attempts, history, "go down", "error", alone=lock)
    assert waited == [
        False,
        False,
        True,
    ]  # the last one is the check: the second repetition freed its place
    assert not lock.locked()


async def test_of_several_episodes_that_crash_their_server_at_once_none_is_spared() -> None:
    """While one of them holds the lock and crashes the server again, the environments of those that wait for
    the lock end, too."""
    crashes = 0

    class Crashing(Halved):
        async def begin(self) -> str:
            await asyncio.sleep(0)
            self.begun = crashes
            return await super().begin()

        async def act(self, sent: str) -> str:
            nonlocal crashes
            await asyncio.sleep(0)
            if self.begun != crashes:
                raise Unanswered("gone", "lost")
            if sent == "crash":
                crashes += 1
                raise Unanswered("gone", "lost")
            return await super().act(sent)

    async def guilty(turns: int) -> bool:
        for _ in range(turns):  # so that some begin while another one holds the lock
            await asyncio.sleep(0)
        history = History()
        history.began("a room")
        history.answered("look", "a hall")
        return await caused_by_agent(Crashing, history, "crash", "lost", alone=lock)

    for apart in range(8):
        lock = ServerLock()
        assert all(await asyncio.gather(*(guilty(apart * number) for number in range(6))))


class Halved(Other):
    """An environment that notices whether an action is repeated with less time."""

    halved = False

    async def act_again(self, sent: str) -> None:
        self.halved = True
        await super().act_again(sent)

    async def check(self) -> None:
        pass


def test_a_history_takes_little_memory_however_much_an_environment_shows() -> None:
    history = History()
    shown = "x" * 1_000_000
    history.began(shown)
    history.answered("look", shown)
    assert len(pickle.dumps(history)) < 2_000


async def test_a_full_server_decides_nothing_and_a_lost_one_has_failed() -> None:
    full = partial(Other, away=NoPlace("full"))
    assert await _asked([full], "error") == (True, 1, 1)
    assert await _asked([lambda: Other(failures=BY_CHANCE), full], "") == (False, 2, 1)
    lost = partial(Other, away=InfrastructureError("away"))
    assert await _asked([lost], "error") == (False, 1, 0)
