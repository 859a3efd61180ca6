"""The examples of `docs/action-formats.md` are replies of the formats, and its messages are the feedback."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection

import pytest

from air.actions import FORMATS, NAMES_ELSEWHERE, Action, FormatError, get
from air.rewards.answers import CHECKERS
from air.tools import tool
from tests.docs.blocks import ROOT

PAGE = (ROOT / "docs/action-formats.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^`(\w+)`[^\n]*:\n\n(`{3,})text\n(.*?)\n\2$", PAGE, re.DOTALL | re.MULTILINE)
ANSWERS = {
    "think_answer": "Left || Left",
    "react": "craft 4 planks using 1 log",
    "react_line": "inventory",
    "code_block": "SELECT count(*) FROM orders",
    "search_r1": "Paris",
    "tool_calls": "Left",
    "hermes": "Left",
    "react_input": "Paris",
    "action": "go north",
    "code": "print(17 * 23)",
    "bash_swe": "ls -a",
}
MOVE = {"name": "move", "parameters": {"properties": {"steps": {"type": "integer"}}}}
REPLIES = {
    "has no answer": "Up",
    "has several": "<answer>a</answer><answer>b</answer>",
    "has one inside another": "<answer>a<answer>b</answer>",
    "does not end it": "<answer>a",
    "is empty": "<answer></answer>",
    "has tags in the thought": "<think><answer></think><answer>a</answer>",
    "has tags before the thought": "<answer>a</answer><think>b</think><answer>c</answer>",
    "goes on after a `react` action": "Action: a\nObservation: b",
    "has a call that is cut": '<answer>{"name": "mo</answer>',
    "calls what is not there": '<answer>{"name": "fly"}</answer>',
    "has a wrong argument": '<answer>{"name": "move", "arguments": {"steps": "2"}}</answer>',
}
"""A reply for each row of the page's table of messages."""


def test_every_example_is_a_reply_in_its_format() -> None:
    assert {name: get(name).parse(text) for name, _, text in EXAMPLES} == {
        name: Action(answer=answer) for name, answer in ANSWERS.items()
    }
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == set(FORMATS)


@pytest.mark.parametrize("row", REPLIES)
def test_the_messages_are_those_of_the_page(row: str) -> None:
    (cell,) = re.findall(rf"^\| {re.escape(row)} \| (.*) \|$", PAGE, re.MULTILINE)
    message = re.findall(r"^`` (.*) ``$|^`([^`]*)`", cell)[0]
    form = get("react" if "react" in row else "think_answer")
    form = form.with_tools([MOVE, {"name": "look"}] if "call" in row or "argument" in row else [])
    with pytest.raises(FormatError, match=re.escape(f"Format error: {message[0] or message[1]}")):
        form.parse(REPLIES[row])


def test_the_table_has_no_other_rows() -> None:
    table = PAGE.split("## What the model is told")[1].split("## Write")[0]
    assert re.findall(r"^\| (.*?) \|", table, re.MULTILINE)[1:] == list(REPLIES)


def column(header: str) -> list[tuple[str, str]]:
    """The first two cells of each row of the table whose second column has this header."""
    (body,) = re.findall(rf"^\| [^|]* \| {header} \|.*\n\|---.*\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return re.findall(r"^\| ([^|]*) \| ([^|]*) \|", body, re.MULTILINE)


@pytest.mark.parametrize(
    ("header", "known"),
    [
        ("here, `format`", FORMATS),
        ("here, argument of `@tool`", inspect.signature(tool).parameters),
        ("here, `checker`", CHECKERS),
    ],
)
def test_what_agentfly_has_becomes_what_exists_here(header: str, known: Collection[str]) -> None:
    cells = column(header)
    assert len(cells) >= 6
    for theirs, ours in cells:
        names = re.findall(r"`(\w+)`", ours)
        assert names if ours != "none" else not names, theirs
        assert set(names) <= set(known), theirs


def test_a_name_of_agentfly_is_answered_with_the_format_of_the_page() -> None:
    rows = dict(column("here, `format`"))
    agents = {name: ours for cell, ours in rows.items() for name in re.findall(r"\w+", cell)}
    for name in agents.keys() & NAMES_ELSEWHERE.keys():
        (first, *_) = re.findall(r"`(\w+)`", agents[name])
        assert NAMES_ELSEWHERE[name].startswith(f"`{first}`")
    assert {name for name in agents if name not in FORMATS} >= {"hf", "searchr1", "gui"}
