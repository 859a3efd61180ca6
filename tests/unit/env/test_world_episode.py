"""A world is ended once, whoever is cancelled meanwhile; errors in code of the user are noted."""

from __future__ import annotations

import asyncio
import errno
import math
import re
from typing import Any

import pytest

from air.actions import Action
from air.env.world_episode import WatchedWorld
from air.errors import HangingToolError, InfrastructureError, RewardTermError, UserCodeError
from air.testing import Letters
from air.worlds.base import Observation, Step


class Slow(Letters):
    """A world whose end waits for an event."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.may_end, self.ends = asyncio.Event(), asyncio.Event(), 0

    async def close(self) -> dict[str, Any]:
        self.begun.set()
        await self.may_end.wait()
        self.ends += 1
        return {}


async def test_a_cancelled_end_of_a_world_is_completed() -> None:
    slow = Slow()
    world = WatchedWorld(slow)
    closing = asyncio.create_task(world.close())
    await slow.begun.wait()
    closing.cancel()
    slow.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert slow.ends == 1
    await world.close()
    assert slow.ends == 1


class Broken(Letters):
    """A world in which code of the user fails."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    async def reset(self, seed: int) -> Observation:
        raise self.error

    async def step(self, action: Action) -> Step:
        raise self.error

    async def close(self) -> dict[str, Any]:
        raise self.error


@pytest.mark.parametrize("kind", [RewardTermError, HangingToolError])
async def test_an_error_in_code_of_the_user_is_noted_so_that_the_run_stops(
    kind: type[UserCodeError],
) -> None:
    error = kind("it hangs", where="tool x")
    resetting, stepping = WatchedWorld(Broken(error)), WatchedWorld(Broken(error))
    with pytest.raises(kind):
        await resetting.reset(0)
    with pytest.raises(kind):
        await stepping.step(Action())
    assert resetting.user_error == stepping.user_error == "tool x: it hangs"
    closing = WatchedWorld(Broken(error))
    for _ in range(2):  # the episode's rewards stay, so the error is not raised
        assert await closing.close() == {}
    assert closing.user_error == closing.close_error == "tool x: it hangs"


@pytest.mark.parametrize(
    "error",
    [
        ValueError("an odd action"),
        IndexError("no such door"),
        RuntimeError("an odd state"),
        FileNotFoundError(errno.ENOENT, "no such level"),
        OSError(errno.ENAMETOOLONG, "a long name"),
        OSError("not a picture"),
    ],
)
async def test_a_world_that_fails_at_an_action_stops_the_run(error: Exception) -> None:
    """Else an agent could leave its bad episodes out of training by such an action."""
    world = WatchedWorld(Broken(error))
    with pytest.raises(UserCodeError, match=re.escape(str(error))):
        await world.step(Action())
    assert "what an agent can cause must be an observation" in world.user_error


@pytest.mark.parametrize(
    "error",
    [
        InfrastructureError("no server"),
        ConnectionResetError("the server left"),
        TimeoutError("no answer"),
        OSError(errno.ENOSPC, "the disk is full"),
    ],
)
async def test_a_failure_outside_of_a_worlds_code_does_not_stop_the_run(error: Exception) -> None:
    world = WatchedWorld(Broken(error))
    with pytest.raises(type(error)):
        await world.step(Action())
    assert not world.user_error


class Infinite(Letters):
    """A world with a reward and a fact that are no finite numbers."""

    async def step(self, action: Action) -> Step:
        return Step(Observation(""), reward=math.nan)

    def facts(self) -> dict[str, float]:
        return {"success": math.inf}


async def test_a_reward_that_is_no_number_stops_the_run() -> None:
    stepping, ending = WatchedWorld(Infinite()), WatchedWorld(Infinite())
    with pytest.raises(UserCodeError, match="the reward nan"):
        await stepping.step(Action())
    with pytest.raises(UserCodeError, match="fact success is inf"):
        ending.facts()
    assert stepping.user_error
    assert ending.user_error
