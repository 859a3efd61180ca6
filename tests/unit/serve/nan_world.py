"""A world in which the reward of each action is the number in the action, such as `nan`:
`tests.unit.serve.nan_world:nan`."""

from __future__ import annotations

from air.actions.base import Action
from air.worlds.base import Observation, Step
from air.worlds.sources import WorldTask


class Repeated:
    """An episode without end."""

    async def reset(self, seed: int) -> Observation:
        return Observation("Write a number.")

    async def step(self, action: Action) -> Step:
        return Step(Observation("Done."), reward=float(action.answer))

    async def close(self) -> dict[str, object]:
        return {}

    def facts(self) -> dict[str, float]:
        return {}


class Source:
    """Loads the world."""

    def load(self, name: str) -> WorldTask:
        return WorldTask(
            id=f"tests.unit.serve.nan_world:{name}",
            make=Repeated,
            instructions="Write a number.",
            digest=name,
            replays=True,
            max_turns=9,
        )

    def names(self) -> list[str]:
        return ["nan"]


SOURCE = Source()
