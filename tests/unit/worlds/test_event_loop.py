"""Tools and formats that run in this process work beside the event loop: other episodes go on meanwhile."""

from __future__ import annotations

import pytest

from air.actions import get
from air.env.chat.harness import AirHarness, Reply
from air.env.config import AirHarnessConfig
from air.env.diffs import COMPARED_LINES, Differ
from air.env.observation_truncation import counter_for
from air.env.world_episode import WatchedWorld, WorldEpisode
from air.sandbox.contract.box import Box
from air.testing import Letters
from air.trajectories import Recorder
from air.worlds import sources
from tests.e2e.worlds.test_worlds import config
from tests.ticks import longest_pause
from tests.unit.worlds.conftest import Use

MOST = 0.5
"""The largest share of the work during which the event loop may stand still."""
LINES = 400_000
TEXT = "line\n" * LINES


@pytest.mark.parametrize(("name", "where"), [("edit", "1:1"), ("insert", "0")])
async def test_an_edit_of_many_lines_lets_the_event_loop_go_on(
    name: str, where: str, box: Box, use: Use
) -> None:
    await box.write("a.txt", TEXT.encode())
    await use("open", "a.txt")
    assert await longest_pause(use(name, where, body=("line",) * LINES)) < MOST


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
