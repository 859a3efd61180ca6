"""A world whose action `slow` takes an hour: `tests.slow_world:slow`."""

from __future__ import annotations

import asyncio

from air.actions.base import Action
from air.worlds.base import Observation, Step
from air.worlds.sources import WorldTask


class Slow:
    """An episode without end or reward."""

    async def reset(self, seed: int) -> Observation:
        return Observation("Act.")

    async def step(self, action: Action) -> Step:
        await asyncio.sleep(3600 if action.answer == "slow" else 0)
        return Step(Observation("Done."))

    async def close(self) -> dict[str, object]:
        return {}

    def facts(self) -> dict[str, float]:
        return {}


class Source:
    """Loads the world."""

    def load(self, name: str) -> WorldTask:
        return WorldTask(
            id=f"tests.slow_world:{name}",
            make=Slow,
            instructions="Act.",
            digest=name,
            replays=True,
            max_turns=9,
        )

    def names(self) -> list[str]:
        return ["slow"]


SOURCE = Source()
