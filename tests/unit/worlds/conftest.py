"""Boxes, tools and whole worlds to act in; no Docker needed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from air import tasks
from air.actions import ToolCall, get
from air.rewards.delta import DeltaReward
from air.sandbox import open_box
from air.sandbox.contract.box import Box, BoxSpec
from air.sandbox.pool.box_pool import Pool
from air.tasks.grading import Grader
from air.tasks.spec import TaskSpec
from air.worlds import ResearchWorld
from air.worlds.base import Step
from air.worlds.research.tools import Tools, ToolSettings

Use = Callable[..., Awaitable[str]]
MakeWorld = Callable[..., Awaitable[ResearchWorld]]


@pytest.fixture
async def box() -> AsyncIterator[Box]:
    async with await open_box(BoxSpec(provider="process"), run="worlds") as box:
        yield box


@pytest.fixture
def tools(box: Box) -> Tools:
    return Tools(box, ToolSettings(window=10, overlap=2, memory=True))


@pytest.fixture
def use(tools: Tools) -> Use:
    """Uses one tool and gives what it told: `await use("open", "a.py", "3")`."""

    async def use(name: str, *args: str, body: tuple[str, ...] | None = None) -> str:
        return (await tools.call(ToolCall(name, args, body))).text

    return use


@pytest.fixture
async def make_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MakeWorld]:
    """Makes a world of titanic with the tools of `mlgym`, laid out in a box of its own."""
    monkeypatch.setenv("AIR_CACHE", str(tmp_path / "cache"))
    async with AsyncExitStack() as stack:
        agents = await stack.enter_async_context(Pool(4))
        grader = Grader(await stack.enter_async_context(Pool(2)), "process")

        async def make(task: TaskSpec | None = None, **settings: bool) -> ResearchWorld:
            task = task or tasks.load("titanic")
            box = await stack.enter_async_context(agents.lease(task.box_spec("process")))
            world = ResearchWorld(
                task=task,
                box=box,
                grader=grader,
                pay=DeltaReward(task.reward_scale()),
                tools=Tools(box, ToolSettings(**settings)),
            )
            await world.reset(0)
            return world

        yield make


async def do(world: ResearchWorld, command: str) -> Step:
    """One command as the format reads it."""
    return await world.step(get("mlgym").parse(f"Go.\n````\n{command}\n````"))


async def told(world: ResearchWorld, command: str) -> str:
    """What the agent is told of one command."""
    return (await do(world, command)).observation.text
