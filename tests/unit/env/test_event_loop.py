"""Tools and formats that run in this process work beside the event loop: other episodes go on meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable

import pytest

from air.actions import ToolCall, get
from air.env.chat.harness import AirHarness, Reply
from air.env.config import AirHarnessConfig
from air.env.diffs import COMPARED_LINES, Differ
from air.env.observation_truncation import counter_for
from air.env.world_episode import WatchedWorld, WorldEpisode
from air.sandbox import open_box
from air.sandbox.contract.box import Box, BoxSpec
from air.testing import Letters
from air.trajectories import Recorder
from air.worlds import sources
from air.worlds.research.tools import Tools, ToolSettings
from tests.e2e.worlds.test_worlds import config

MOST = 0.5
"""The largest share of the work during which the event loop may stand still."""
LINES = 400_000
TEXT = "line\n" * LINES
_SECONDS = 0.002


async def longest_pause(work: Awaitable[object]) -> float:
    """Awaits `work`, and returns how long the event loop stood still at most meanwhile: as a share, from 0 to
    1, of the processor time that this process used. It is near 1 if one long computation keeps the event loop
    from turning, on the loop itself or in a thread that does not let go of Python's lock.

    Only processor time of this process counts, so that load changes little.
    """
    began = last = time.process_time()
    longest = 0.0

    def note() -> None:
        nonlocal last, longest
        now = time.process_time()
        last, longest = now, max(longest, now - last)

    working = asyncio.ensure_future(work)
    while not working.done():
        await asyncio.wait([working], timeout=_SECONDS)
        note()
    await working
    return longest / (last - began)


@pytest.fixture
async def box() -> AsyncIterator[Box]:
    async with await open_box(BoxSpec(provider="process")) as box:
        yield box


@pytest.mark.parametrize(("name", "where"), [("edit", "1:1"), ("insert", "0")])
async def test_an_edit_of_many_lines_lets_the_event_loop_go_on(
    name: str, where: str, box: Box
) -> None:
    await box.write("a.txt", TEXT.encode())
    tools = Tools(box, ToolSettings(window=10))
    await tools.call(ToolCall("open", ("a.txt",)))
    change = ToolCall(name, (where,), ("line",) * LINES)
    assert await longest_pause(tools.call(change)) < MOST
    lines = (await box.read("a.txt")).count(b"\n")
    assert lines == 2 * LINES - (name == "edit")


async def test_a_long_reply_lets_the_event_loop_go_on() -> None:
    episode = WorldEpisode(
        id="e",
        world=WatchedWorld(Letters()),
        recorder=Recorder(None, "e"),
        config=config("air.testing:letters"),
        format=get("mlgym"),
        format_name="mlgym",
        task=sources.load("air.testing:letters"),
    )
    reply = Reply(f"```\nedit 1:1\n{TEXT}end_of_edit\n```", False, 1, 1)
    harness = AirHarness(AirHarnessConfig())
    assert await longest_pause(harness.act(episode, reply, counter_for(None), None)) < MOST
    assert not episode.counters.format_errors


async def test_a_diff_of_swapped_lines_lets_the_event_loop_go_on(box: Box) -> None:
    """Pairs of lines in the other order are the worst case of a comparison."""
    differ = Differ(box)
    await box.write("a.txt", "".join(f"{n}\n" for n in range(COMPARED_LINES)).encode())
    await differ.start()
    await box.write("a.txt", "".join(f"{n ^ 1}\n" for n in range(COMPARED_LINES)).encode())
    assert await longest_pause(differ.diff()) < MOST
