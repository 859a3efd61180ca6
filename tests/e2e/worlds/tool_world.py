"""A world with tools: the task `tests.e2e.worlds.tool_world:doors`. The second of two doors is right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from air.actions import Action, ToolCall
from air.errors import MissingError
from air.worlds.base import Observation, Step
from air.worlds.sources import WorldTask

TOOLS: tuple[Mapping[str, Any], ...] = (
    {
        "type": "function",
        "function": {
            "name": "open_door",
            "description": "Opens a door.",
            "parameters": {
                "type": "object",
                "properties": {"number": {"type": "integer"}},
                "required": ["number"],
            },
        },
    },
    {
        "type": "function",
        "function": {"name": "wait", "parameters": {"type": "object", "properties": {}}},
    },
)


class Doors:
    """The world. Each door that is opened is told; the right one ends the episode with a reward of 1."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Mapping[str, Any]]] = []

    async def reset(self, seed: int) -> Observation:
        return Observation("Two doors.")

    async def step(self, action: Action) -> Step:
        assert action.tool is not None
        assert action.tool.arguments is not None
        self.calls.append((action.tool.name, action.tool.arguments))
        right = action.tool.arguments.get("number") == 2
        shown = "Out." if right else f"{action.tool.name}: nothing."
        return Step(Observation(shown), done=right, reward=float(right))

    async def close(self) -> dict[str, Any]:
        return {}

    def facts(self) -> dict[str, float]:
        return {"success": 0.0, "num_actions": float(len(self.calls))}


def player(observation: str) -> Action:
    """Opens one door after the other."""
    number = 1 if observation == "Two doors." else 2
    return Action(tool=ToolCall("open_door", arguments={"number": number}))


class Source:
    def load(self, name: str) -> WorldTask:
        if name != "doors":
            raise MissingError(f"there is no world {name!r}", remedy="use doors")
        return WorldTask(
            id="tests.e2e.worlds.tool_world:doors",
            make=Doors,
            instructions="Get out.",
            digest="doors-1",
            replays=True,
            max_turns=5,
            format="tool_calls",
            tools=TOOLS,
            player=lambda world, seed: player,
        )

    def names(self) -> list[str]:
        return ["doors"]


SOURCE = Source()
