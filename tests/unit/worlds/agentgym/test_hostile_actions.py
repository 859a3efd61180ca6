"""No text of an agent stops an episode: it is sent, or the agent is told why not."""

from __future__ import annotations

import ast
import dataclasses
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from air.actions.base import Action, ToolCall
from air.worlds.agentgym.environments import ENVIRONMENTS
from air.worlds.agentgym.world import MAX_ACTION, AgentGymWorld
from tests.unit.worlds.agentgym.corridors import TOOLS, Corridors, written

INPUTS = (
    "{'n': 0x" + "f" * 3_600 + "}",  # Python can read it, but not write it in decimal
    "{'n': [-0b" + "1" * 7_900 + "]}",
    "{'n': 1" + "0" * 4_299 + "}",
    "{'n': 1" + "0" * 4_300 + "}",
    '{"n": ' + "9" * 5_000 + "}",
    "{'n': 1e400}",
    "{'n': " + "9" * 400 + ".0}",
    "{'n': 1 + 2j}",
    "{'n': b'bytes'}",
    "{'n': {1, 2}}",
    "{'n': {(): {}}}",
    "{{}: 1}",
    "{[]: 1}",
    "{'n': ...}",
    "{**{'n': 1}}",
    "{'n': set()}",
    "{'n': f'{f\"{1}\"}'}",
    "{'n': " + "f'{" * 200 + "1" + "}'" * 200 + "}",
    "{'n': '\ud800'}",
    '{"n": "\\ud800"}',
    "{'n': '\\ud800'}",
    "{'\\udfff': 1}",
    "{'n': '\\N{no such name}'}",
    "{'n': '\\x'}",
    "{'n': '\0'}",
    "{'n': 1}\0",
    "{'n': " + "-" * 7_000 + "1}",
    "{'n': " + "~" * 7_000 + "1}",
    "{'n': 1" + "+1" * 3_900 + "}",
    "{'n': 1" + "+1j" * 2_600 + "}",
    "{'n': " + "(" * 7_900,
    "{'n': " + "[" * 3_900 + "]" * 3_900 + "}",
    '{"n": ' * 1_300 + "1" + "}" * 1_300,
    "{'n': '" + "%s" * 3_900 + "'}",
    "{'n':\n 1\n  }",
    "{",
    "",
)
"""Inputs of tool calls, most of which the parsers of JSON or Python refuse, each in another way."""
TEXTS = (
    *(f"walk with Action Input: {text}" for text in INPUTS),
    f"SELECT {INPUTS[0]}",
    "",
    " \n\t ",
    "\0",
    "\ud800 \udfff",
    "\u2028\x1c\x85",
    "x" * MAX_ACTION,
    "x" * (MAX_ACTION + 1),
    "\u4e16" * MAX_ACTION,
    "\n" * MAX_ACTION,
    "<search>" * (MAX_ACTION // 8),
    "<answer>" * (MAX_ACTION // 8) + "</search>",
    "```" * (MAX_ACTION // 3),
    "select " + "[" * (MAX_ACTION - 7),
    "select " + "/*" * (MAX_ACTION // 2 - 4),
    "select 1;" * 800,
    "put " + "a in " * 1_500 + "b",
    "Action:" + " " * 7_900,
    "a" * 4_000 + " " * 3_900 + "with",
    "{}" * 4_000,
    "%s %d {0} {x!r} $x \\1 \\g<1>",
)


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


VALUES: tuple[Any, ...] = (
    nested(200_000),
    nested(300),
    10**5_000,
    float("nan"),
    float("-inf"),
    "\ud800",
    "x" * (MAX_ACTION + 1),
    {"query": None},
    None,
)
ACTIONS = (
    *(Action(answer=text) for text in TEXTS),
    *(Action(script=text) for text in TEXTS[-3:]),
    *(
        Action(tool=ToolCall(name, arguments={"query": value}))
        for name in ("search", "walk")
        for value in VALUES
    ),
    *(Action(tool=ToolCall(text, arguments={})) for text in TEXTS[-20:]),
    Action(tool=ToolCall("search", ("a", "\ud800"), ("b",))),
    Action(ending="submit"),
    Action(),
)


class Receiving(Corridors):
    """Keeps the actions that it is sent."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.sent: list[str] = []

    def answer(self, path: str, body: Mapping[str, Any]) -> Any:
        if path.endswith("/step"):
            self.sent.append(body["action"])
        return super().answer(path, body)


@asynccontextmanager
async def begun(name: str, **changes: Any) -> AsyncIterator[tuple[Receiving, AgentGymWorld]]:
    """A server of the environment `name`, and an episode on it that has begun. `changes` are fields of the
    environment."""
    server = Receiving(name)
    async with server.running():
        world = AgentGymWorld(dataclasses.replace(ENVIRONMENTS[name], **changes), server.url)
        try:
            await world.reset(0)
            yield server, world
        finally:
            await world.close()


@pytest.mark.parametrize("name", ENVIRONMENTS)
async def test_no_text_of_an_agent_stops_an_episode(name: str) -> None:
    async with begun(name) as (server, world):
        for action in ACTIONS:
            before = len(server.sent)
            step = await world.step(action)
            assert (step.done, step.reward) == (False, 0)
            assert len(server.sent) > before or step.observation.text
        await world.step(Action(answer=written(name, "forward")))
        assert server.sessions[0].place == 1
    assert all(len(sent) <= MAX_ACTION for sent in server.sent)
    json.dumps(server.sent, ensure_ascii=False).encode()
    if name in TOOLS:
        calls = [sent.partition(" with Action Input: ") for sent in server.sent]
        assert all(isinstance(ast.literal_eval(call[2]), dict) for call in calls)


async def test_an_integer_that_cannot_be_written_in_decimal_is_not_sent() -> None:
    async with begun("weather") as (server, world):
        step = await world.step(Action(answer=f"walk with Action Input: {INPUTS[0]}"))
        assert "not a JSON object" in step.observation.text
        assert not server.sent
        await world.step(Action(answer="walk with Action Input: {'n': 0x" + "f" * 512 + "}"))
        assert server.sent == [f"Action: walk with Action Input: {{'n': {2**2048 - 1}}}"]


@pytest.mark.parametrize(
    ("short", "long"),
    [
        (Action(answer="x" * MAX_ACTION + "\n"), Action(answer="x" * (MAX_ACTION + 1))),
        (Action(answer="x"), Action(answer="<search>" * MAX_ACTION)),
        (Action(answer="x"), Action(answer="select " + "[" * MAX_ACTION)),
        (Action(answer="x"), Action(answer="x\n" * MAX_ACTION)),  # one line of which would be sent
        (Action(script="x"), Action(script="x" * (MAX_ACTION + 1))),
        (
            Action(tool=ToolCall("search", arguments={"query": "\u4e16" * (MAX_ACTION - 100)})),
            Action(tool=ToolCall("search", arguments={"query": "x" * MAX_ACTION})),
        ),
    ],
)
async def test_an_action_that_is_too_long_is_not_even_converted(
    short: Action, long: Action
) -> None:
    """Some conversions take quadratic time: five seconds for 8,000 tags, in which nothing else runs."""
    converted: list[Action] = []

    def send(action: Action, before: Any) -> str:
        converted.append(action)
        return "stay"

    async with begun("searchqa", send=send) as (server, world):
        step = await world.step(long)
        assert step.observation.text == f"The action exceeds {MAX_ACTION} characters."
        assert not step.done
        assert (converted, server.sent) == ([], [])
        await world.step(short)
        assert (converted, server.sent) == ([short], ["stay"])
