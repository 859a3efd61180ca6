"""A group of episodes of one prompt, played at once with a tool that has a state for each episode: what fails
in one episode is that episode's alone."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import verifiers.v1 as vf

from air.config import plugin
from air.testing import Message, ScriptedServer
from air.train.loop.rollout import Group, Source, play_group
from air.trajectories import Trajectory
from tests.e2e.conftest import research
from tests.e2e.episodes.test_tool_formats import call, recorded

SIZE = 4
TOOL = """
import itertools
import threading

from air.errors import InfrastructureError
from air.tools import tool

NUMBERS = itertools.count()
AT_ONCE = threading.Barrier(4, timeout=60)  # the calls of all episodes, which pass it together
CLOSED = []


class Steps:
    def __init__(self, context):
        self.number = next(NUMBERS) % 4
        self.taken = []

    def close(self):
        CLOSED.append((self.number, len(self.taken)))


@tool(state=Steps, pool_size=4, seconds=120)
def step(steps: Steps) -> str:
    '''Takes a step.'''
    steps.taken.append(f"{steps.number}.{len(steps.taken) + 1}")
    if len(steps.taken) <= 2:
        AT_ONCE.wait()
    if len(steps.taken) == 2 and steps.number == 0:
        raise InfrastructureError("the service is away")
    if len(steps.taken) == 2 and steps.number == 1:
        raise ValueError("no luck")
    return "Steps: " + " ".join(steps.taken)
"""
"""A tool whose state has a number and the steps of its episode. All four episodes of a group are inside the
tool at once, twice. At the second step, the tool of number 0 fails on our side, and that of number 1 raises
an exception of its own."""
TOLD = {
    0: ["Steps: 0.1"],
    1: ["Steps: 1.1", "The tool step failed: ValueError: no luck", "Steps: 1.1 1.2 1.3"],
    2: ["Steps: 2.1", "Steps: 2.1 2.2", "Steps: 2.1 2.2 2.3"],
    3: ["Steps: 3.1", "Steps: 3.1 3.2", "Steps: 3.1 3.2 3.3"],
}
"""What the calls of each episode show, by the number of its state. The failed call shows nothing."""


def steps_then_answer(conversation: Sequence[Message]) -> str:
    """Plays the agent: three steps, and then an answer, which is right in the episode of number 2."""
    if sum(message["role"] == "assistant" for message in conversation) < 3:
        return call("step")
    return "42" if "Steps: 2.1 2.2 2.3" in str(conversation[-1]["content"]) else "7"


@pytest.fixture
def env(tmp_path: Path) -> Any:
    (tmp_path / "steps.py").write_text(TOOL)
    (tmp_path / "rows.jsonl").write_text('{"question": "What is 6 * 7?", "answer": "42"}\n')
    (tmp_path / "task.toml").write_text(
        'data = "rows.jsonl"\nchecker = "math_string_equal"\nturns = 5\ntools = ["steps.py:step"]\n'
    )
    name = f"rows:{tmp_path}/task.toml#split=all&format=hermes"
    record_dir = tmp_path / "records"
    config = research([name], "subprocess", max_turns=None, record_dir=record_dir)
    return vf.load_environment(config)


async def played(env: Any, groups: int) -> list[Group]:
    """Groups of the same prompt, one after the other, each played as training does, but without token ids:
    the package renderers keeps a lock that belongs to one event loop."""
    tasks = list(env.taskset)
    with ScriptedServer(steps_then_answer) as server:
        client = vf.EvalClientConfig(base_url=server.url, api_key_var="AIR_TEST_KEY")
        ctx = vf.ModelContext(model="scripted", client=client)
        # A place in the tool's pool that is never given back would be waited for without an end.
        async with env.serving(), asyncio.timeout(300):
            source = Source("s", 1.0, SIZE, env, tasks)
            return [await play_group(source, tasks[0], ctx) for _ in range(groups)]


def number_of(trajectory: Trajectory) -> int:
    """The number of the state that the episode's first call showed."""
    found = re.fullmatch(r"Steps: (\d)\.1", str(trajectory.steps[0].observation))
    assert found, trajectory.steps[0].observation
    return int(found[1])


async def test_what_fails_in_one_episode_of_a_group_is_that_episodes_alone(
    env: Any, tmp_path: Path
) -> None:
    """The second group shows that the states were released: the pool has places for four alone."""
    groups = await played(env, groups=2)
    for group in groups:
        (masked,) = [one for one in group.rollouts if not one.ok]
        assert "the service is away" in masked.error
        trained = [one for one in group.rollouts if one.ok]
        assert sorted(one.trace.reward for one in trained) == [0, 0, 1]
        assert sorted(one.trace.metrics["tool_errors"] for one in trained) == [0, 0, 1]

    trajectories = recorded(tmp_path)
    assert sorted(map(number_of, trajectories)) == [0, 0, 1, 1, 2, 2, 3, 3]
    for one in trajectories:
        number = number_of(one)
        assert one.end is not None
        assert [step.observation for step in one.steps][:3] == TOLD[number]
        assert (one.end.ok, one.end.reward) == (
            (False, None) if number == 0 else (True, number == 2)
        )

    closed = plugin("steps.py:CLOSED", tmp_path)
    steps = [(0, 2), (1, 3), (2, 3), (3, 3)]
    assert sorted(closed[:SIZE]) == sorted(closed[SIZE:]) == steps
