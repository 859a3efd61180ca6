"""A world is ended once, whoever is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from air.env.world_episode import WatchedWorld
from air.testing import Letters


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
