"""A posed question pays 1 or −1, and shows its label to nobody."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from air.actions import Action, Message, ToolCall
from air.errors import ConfigError, MissingError
from air.worlds import conformance, sources
from air.worlds.sources import VALIDATION_SEED

ROWS = [
    {"question": "What is 3 + 4?", "answer": "7", "p_hat": 0.6},
    {"question": "What is 1/2?", "answer": "0.5"},
]


def write(folder: Path, *rows: Any) -> str:
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"posed:{file}"


@pytest.mark.parametrize(
    ("seed", "reply", "reward", "answered"),
    [
        (0, "I say \\boxed{7}", 1.0, 1.0),
        (2, "\\boxed{8} no, \\boxed{7.0}", 1.0, 1.0),
        (0, "\\boxed{7} no, \\boxed{8}", -1.0, 1.0),
        (0, "7", -1.0, 0.0),
        (0, "\\boxed{7", -1.0, 0.0),
        (1, "\\boxed{\\frac{1}{2}}", 1.0, 1.0),
        (VALIDATION_SEED + 1, "\\boxed{1/2}", 1.0, 1.0),
        (1, "\\boxed{}", -1.0, 1.0),
        (1, "\\boxed{" + "9" * 5000 + "}", -1.0, 1.0),
    ],
)
async def test_the_last_boxed_answer_is_paid(
    seed: int, reply: str, reward: float, answered: float, tmp_path: Path
) -> None:
    task = sources.load(write(tmp_path, *ROWS))
    world = task.make()
    first = await world.reset(seed)
    assert "7" not in first.text
    assert "0.5" not in first.text
    step = await world.step(Action(answer=reply))
    assert (step.reward, step.done, step.observation.text) == (reward, True, "")
    assert world.facts()["answered"] == answered
    assert world.facts()["success"] == float(reward > 0)
    assert world.facts()["p_hat"] == (0.6 if seed in (0, 2) else 1.0)
    assert task.unanswered == -1.0


async def test_the_world_conforms(tmp_path: Path) -> None:
    right = [Action(answer="\\boxed{7}")]
    assert await conformance.check(sources.load(write(tmp_path, *ROWS)), right) == {}


@pytest.mark.parametrize(
    "row",
    [
        {"question": "q"},
        {"question": " ", "answer": "1"},
        {"question": "q", "answer": ["1"]},
        {"question": "q", "answer": True},
        {"question": "q", "answer": "1", "p_hat": 1.5},
        {"question": "q", "answer": "1", "p_hat": "x"},
        {"question": "q", "answer": "1", "p_hat": True},
        3,
    ],
)
def test_malformed_rows_are_refused(row: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rows\.jsonl:2"):
        sources.load(write(tmp_path, ROWS[0], row))


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("rows.jsonl", "[" * 100_000, r"rows\.jsonl:1: not JSON"),
        ("posed.json", "[" * 100_000, "not valid JSON: nested too deeply"),
        ("posed.toml", "tools = " + "[" * 100_000, "not valid TOML: nested too deeply"),
    ],
    ids=["rows", "json", "toml"],
)
def test_a_file_that_is_nested_too_deeply_is_refused(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=said) as caught:
        sources.load(f"posed:{tmp_path / name}")
    assert "\n" not in str(caught.value)


def test_files_are_needed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no rows"):
        sources.load(write(tmp_path))
    with pytest.raises(MissingError, match="no such file"):
        sources.load("posed:absent.jsonl")


def with_tools(where: Path, *tools: Any, **settings: Any) -> str:
    write(where, *ROWS)
    file = where / "posed.json"
    file.write_text(json.dumps({"rows": "rows.jsonl", "tools": tools, **settings}))
    return f"posed:{file}"


ENDS = """
from air.tools import Reply, finish, tool


@tool
def ends(text: str) -> Reply:
    "Ends the episode."
    return finish(text)
"""


def call(name: str, **arguments: Any) -> Action:
    return Action(tool=ToolCall(name, arguments=arguments))


@pytest.mark.parametrize(("equality", "reward"), [("math", 1.0), ("forms", -1.0)])
async def test_answers_are_compared_by_the_rule_of_the_settings(
    equality: str, reward: float, tmp_path: Path
) -> None:
    """With a file of settings; a file of rows alone is compared by forms."""
    row = {"question": "What is x + x?", "answer": "2x"}
    rows = write(tmp_path, row)
    (tmp_path / "own.json").write_text(json.dumps({"rows": "rows.jsonl", "equality": equality}))
    for name, expected in ((f"posed:{tmp_path / 'own.json'}", reward), (rows, -1.0)):
        world = sources.load(name).make()
        await world.reset(0)
        assert (await world.step(Action(answer="\\boxed{x*2}"))).reward == expected


def test_the_rule_of_equality_decides_the_digest(tmp_path: Path) -> None:
    plain = sources.load(write(tmp_path, *ROWS))
    digests = []
    for equality in ("math", "forms"):
        file = tmp_path / f"{equality}.json"
        file.write_text(json.dumps({"rows": "rows.jsonl", "equality": equality}))
        digests.append(sources.load(f"posed:{file}").digest)
    assert digests[0] != digests[1] == plain.digest


async def test_tools_are_used_before_the_answer(tmp_path: Path) -> None:
    task = sources.load(with_tools(tmp_path, {"name": "calculator", "max_length": 64}))
    assert [tool["function"]["name"] for tool in task.tools] == ["calculator"]
    assert (task.max_turns, task.format, task.replays) == (4, "tool_calls", True)
    assert "\\boxed" in task.instructions
    world = task.make()
    await world.reset(0)
    steps = [
        await world.step(call("calculator", expression="3 + 4")),
        await world.step(call("calculator", expression="3 +")),
        await world.step(call("absent")),
        await world.step(Action(answer="It is \\boxed{7}.")),
    ]
    assert steps[0].observation.text == "7"
    assert [step.done for step in steps] == [False, False, False, True]
    assert sum(step.reward for step in steps) == 1.0
    facts = world.facts()
    assert (facts["success"], facts["tool_calls"], facts["tool_errors"]) == (1.0, 1.0, 2.0)
    await world.reset(1)
    assert world.facts()["tool_calls"] == 0.0


async def test_calls_without_an_answer_earn_no_more_than_a_wrong_one(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(ENDS)
    task = sources.load(with_tools(tmp_path, "calculator", "own.py:ends", turns=3))
    assert task.unanswered == -1.0  # what an episode earns whose turns end here
    world = task.make()
    await world.reset(0)
    steps = [await world.step(call("calculator", expression="\\boxed{7}")) for _ in range(3)]
    assert [(step.reward, step.done) for step in steps] == [(0.0, False)] * 3
    assert world.facts()["answered"] == 0.0
    await world.reset(0)
    step = await world.step(call("ends", text="\\boxed{7}"))
    assert (step.done, step.reward) == (True, -1.0)
    assert world.facts()["answered"] == 0.0


async def test_the_answer_is_in_the_reply_that_ends_the_episode(tmp_path: Path) -> None:
    world = sources.load(with_tools(tmp_path, "calculator")).make()
    await world.reset(0)
    asking = Message('\\boxed{7}\n<tool_call>{"name": "calculator"}</tool_call>')
    tool = ToolCall("calculator", arguments={"expression": "1"})
    assert not (await world.step(Action(tool=tool, message=asking))).done
    said = Message("<answer>\\boxed{8}</answer> no, \\boxed{7}")
    step = await world.step(Action(answer="\\boxed{8}", message=said))
    assert step.reward == 1.0  # the whole reply counts, as it does when answers are compared


async def test_worlds_with_tools_conform(tmp_path: Path) -> None:
    task = sources.load(with_tools(tmp_path, "calculator"))
    sum_first = [call("calculator", expression="3 + 4"), Action(answer="\\boxed{7}")]
    assert await conformance.check(task, sum_first) == {}


def test_tools_decide_the_digest_and_where_they_lie_does_not(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(ENDS)
    one = sources.load(with_tools(tmp_path, "calculator"))
    assert one.digest != sources.load(write(tmp_path, *ROWS)).digest
    assert sources.load(with_tools(tmp_path, "own.py:ends")).tools
    (tmp_path / "deep").mkdir()
    deep = with_tools(tmp_path / "deep", "../own.py:ends")
    assert sources.load(deep).tools
    named = with_tools(tmp_path / "deep", "own.py:ends", folder=str(tmp_path))
    assert sources.load(named).digest == sources.load(with_tools(tmp_path, "own.py:ends")).digest


def test_tools_in_a_box_have_one(tmp_path: Path) -> None:
    task = sources.load(with_tools(tmp_path, "calculator", "code_interpreter", turns=7))
    assert task.box is not None
    assert task.make is None
    assert (task.max_turns, task.replays) == (7, False)


@pytest.mark.parametrize("tool", ["answer", "submit"])
def test_tools_that_end_the_episode_are_refused(tool: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"`{tool}` would end an episode"):
        sources.load(with_tools(tmp_path, tool))


def test_a_tool_with_an_outcome_of_its_own_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the outcome of the tool `chess_move`"):
        sources.load(with_tools(tmp_path, "chess"))


def test_settings_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"posed\.json.*turn"):
        sources.load(with_tools(tmp_path, "calculator", turn=3))
    with pytest.raises(MissingError, match=r"absent\.jsonl"):
        sources.load(with_tools(tmp_path, rows="absent.jsonl"))
    with pytest.raises(ConfigError, match=r"posed\.json: format: no action format named 'nope'"):
        sources.load(with_tools(tmp_path, "calculator", format="nope"))
