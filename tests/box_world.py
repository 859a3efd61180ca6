"""A world in a box: `tests.box_world:scripts`. With `checked`, a fresh box also reads the answer."""

from __future__ import annotations

from typing import Any

from air.actions.base import Action
from air.sandbox.contract.box import Box, BoxLimits, BoxSpec
from air.tools import OpenTools, ToolContext, ToolSet, load
from air.worlds.base import Observation, Run, Step
from air.worlds.sources import WorldTask

SPEC = BoxSpec(limits=BoxLimits(memory_mb=128, pids=64, disk_mb=16))
SECONDS = 20.0
_BOX = {"limits": SPEC.limits.model_dump()}
TOOLS = ToolSet(
    tool
    for name in ("code_interpreter", "bash", "files")
    for tool in load({"name": name, "box": _BOX})
)


class Scripts:
    """Each action is a shell script. Every script that succeeds gives 1. With `run`, an action that begins
    with `answer ` is a script for a fresh box instead, which gives 2 if it succeeds, and ends the episode."""

    def __init__(self, box: Box | None, run: Run | None = None) -> None:
        self.box, self.run = box, run
        self.scripts = 0

    async def reset(self, seed: int) -> Observation:
        if self.box is not None:
            await self.box.write("seed", str(seed).encode())
        return Observation("Write scripts.")

    async def step(self, action: Action) -> Step:
        self.scripts += 1
        verdict, answer, script = action.answer.partition("answer ")
        if self.run is not None and answer and not verdict:
            result = await self.run(["bash", "-c", script], seconds=SECONDS)
            return Step(Observation(result.text), done=True, reward=2.0 * result.ok)
        if self.box is None:
            return Step(Observation("There is no box."))
        result = await self.box.exec(action.answer, timeout=SECONDS)
        return Step(Observation(result.text), reward=float(result.ok), code=result.code)

    async def close(self) -> dict[str, Any]:
        return {}

    def facts(self) -> dict[str, float]:
        return {"scripts": float(self.scripts)}


class Bench:
    """Each action is a call of a tool of `TOOLS` in the box. Every call that succeeds gives 1."""

    def __init__(self, box: Box) -> None:
        self.box = box
        self.opened: OpenTools | None = None

    async def reset(self, seed: int) -> Observation:
        self.opened = await TOOLS.open(ToolContext(seed=seed, box=self.box))
        return Observation("Use the tools.")

    async def step(self, action: Action) -> Step:
        assert self.opened is not None
        assert action.tool is not None
        result = await self.opened.call(action.tool.name, action.tool.arguments)
        return Step(Observation(result.observation), reward=float(result.status == "success"))

    async def close(self) -> dict[str, Any]:
        if self.opened is not None:
            await self.opened.close()
        return {}

    def facts(self) -> dict[str, float]:
        return {"scripts": 0.0}


class Source:
    """Loads the worlds."""

    def load(self, name: str) -> WorldTask:
        makers: dict[str, Any] = {
            "scripts": {"box": SPEC, "make_in": Scripts},
            "owing": {"box": SPEC, "make_in": Scripts, "unanswered": -3.0},
            "checked": {"box": SPEC, "check_box": SPEC, "make_checked": Scripts},
            "only_checked": {"check_box": SPEC, "make_checked": Scripts},
            "no_image": {
                "box": SPEC.model_copy(update={"image": "air-no-such-image"}),
                "make_in": Scripts,
            },
        }
        if name == "tools":
            makers["tools"] = {"box": TOOLS.box, "make_in": Bench, "tools": TOOLS.schemas}
        return WorldTask(
            id=f"tests.box_world:{name}",
            instructions="Act.",
            digest=name,
            replays=False,
            max_turns=4,
            format="tool_calls" if name == "tools" else "air.testing:WholeReplyFormat",
            facts={"scripts": "the number of scripts"},
            **makers[name],
        )

    def names(self) -> list[str]:
        return ["scripts", "owing", "checked", "only_checked", "no_image", "tools"]


SOURCE = Source()
