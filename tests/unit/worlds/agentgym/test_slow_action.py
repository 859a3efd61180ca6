"""A slow action that may not be repeated: another environment shows whether the server worked meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from air.errors import InfrastructureError
from air.worlds.remote.attribution import SLOW, SlowAction, Unanswered


class Other:
    """Another environment of the server. `fails`: it cannot be begun. `hangs`: its action has no result."""

    def __init__(self, *, fails: bool = False, hangs: bool = False) -> None:
        self._fails, self._hangs = fails, hangs
        self.checking, self.closed = asyncio.Event(), asyncio.Event()

    async def begin(self) -> None:
        if self._fails:
            raise InfrastructureError("the server is away")

    async def act(self, sent: Any) -> None:
        raise AssertionError("nothing is repeated")

    act_again = act

    async def check(self) -> None:
        self.checking.set()
        if self._hangs:
            await asyncio.Event().wait()

    async def close(self) -> None:
        self.closed.set()


async def late(after: asyncio.Event) -> None:
    """An action that gets no result, and ends after an event."""
    await after.wait()
    for _ in range(10):  # the watcher notices the event too
        await asyncio.sleep(0)
    raise Unanswered("no answer", SLOW)


@pytest.mark.parametrize(
    ("other", "worked"), [({}, True), ({"fails": True}, False), ({"hangs": True}, False)]
)
async def test_the_server_was_well_if_the_other_environment_was(
    other: dict[str, bool], worked: bool
) -> None:
    attempt = Other(**other)
    watch = SlowAction(lambda: attempt, 0.0)
    event = attempt.checking if "hangs" in other else attempt.closed
    with pytest.raises(Unanswered):
        await watch.during(late(event), repeats=False)
    assert watch.server_worked == worked
    assert attempt.closed.is_set()


async def test_an_action_that_ends_in_time_or_may_be_repeated_is_not_watched() -> None:
    def none() -> Other:
        raise AssertionError("no other environment is needed")

    async def act() -> int:
        await asyncio.sleep(0)
        return 7

    assert await SlowAction(none, 600.0).during(act(), repeats=False) == 7
    assert await SlowAction(none, 0.0).during(act(), repeats=True) == 7


async def test_a_cancelled_action_closes_the_other_environment() -> None:
    attempt = Other(hangs=True)
    watch = SlowAction(lambda: attempt, 0.0)
    acting = asyncio.create_task(watch.during(late(asyncio.Event()), repeats=False))
    await attempt.checking.wait()
    acting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await acting
    assert attempt.closed.is_set()
