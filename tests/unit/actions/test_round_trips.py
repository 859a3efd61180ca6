"""What a format renders it also reads: random thoughts and actions, of text that is hard to carry."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

from air.actions import FORMATS, Action, ActionFormat, ToolCall, get
from air.actions.search_r1 import SEARCH

PIECES = (
    "<answer>", "</answer>", "<think>", "</think>", "<search>", "</information>", "<tool_call>",
    "</tool_call>", "Action:", "Thought:", "Observation:", "```", "````", "\n", "\n\n", " ", "\t", '"', "'",
    "\\", "{", "}", "||", "a", "Up", "é", "日本", "😀", "\u2028", "\r", "&lt;", "0",
)  # fmt: skip
HARD = {
    "think_answer": ("answer>", "think>"),
    "react": ("Action:", "Thought:", "Observation:"),
    "react_line": ("Action:", "Thought:", "Observation:", "\n"),
    "code_block": ("```", "\n", "\r"),
    "search_r1": ("answer>", "search>", "think>", "information>"),
    "tool_calls": ("tool_call>", "think>"),
    "hermes": ("tool_call>", "think>"),
    "action": ("action>", "think>"),
    "code": ("```", "think>"),
    "bash_swe": ("```", "think>"),
    "react_input": ("Action:", "Thought:", "Observation:", "think>"),
}
"""Texts that a format may refuse to carry; any other it must carry."""
WORLDS = sorted(HARD)
ANY = {"name": "any", "parameters": {"type": "object"}}
TEXT: Mapping[str, Any] = {
    "name": "run",
    "parameters": {
        "type": "object",
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
    },
}
ONE_TOOL = ("action", "code", "bash_swe")
"""The formats that write one text for the only tool."""


def text(numbers: random.Random, most: int) -> str:
    return "".join(numbers.choices(PIECES, k=numbers.randrange(1, most)))


def value(numbers: random.Random, depth: int = 2) -> Any:
    kind = numbers.randrange(7 if depth else 5)
    plain: tuple[Any, ...] = (
        None,
        True,
        numbers.randrange(-9, 9),
        numbers.random(),
        text(numbers, 5),
    )
    if kind < 5:
        return plain[kind]
    if kind == 5:
        return [value(numbers, depth - 1) for _ in range(numbers.randrange(3))]
    return {text(numbers, 3): value(numbers, depth - 1) for _ in range(numbers.randrange(3))}


def carried(form: ActionFormat, thought: str, action: Action) -> bool:
    """Whether the format could express the action; if so, it was read again as it was."""
    try:
        reply = form.render(thought, action)
    except ValueError:
        return False
    assert form.parse(reply) == action, reply
    return True


def test_all_formats_of_worlds_are_here() -> None:
    assert sorted(name for name, form in FORMATS.items() if not form.scripts) == WORLDS


@pytest.mark.parametrize("name", WORLDS)
def test_a_random_answer_is_read_as_it_was_or_refused(name: str) -> None:
    numbers, form, shares = random.Random(name), get(name), [0, 0]
    for _ in range(1500):
        thought, answer = text(numbers, 6), text(numbers, 9)
        fits = carried(form, thought, Action(answer=answer))
        shares[fits] += 1
        padded = answer != answer.strip() and name not in ("code_block", "tool_calls", "hermes")
        hard = any(piece in thought + answer for piece in HARD[name])
        assert fits or hard or padded or not answer.strip(), (thought, answer)
    assert min(shares) > 20


@pytest.mark.parametrize("name", [name for name in WORLDS if name not in ("search_r1", *ONE_TOOL)])
def test_a_random_call_is_read_as_it_was_or_refused(name: str) -> None:
    numbers, form = random.Random(name), get(name).with_tools([ANY])
    for _ in range(500):
        arguments: Mapping[str, Any] = {text(numbers, 3): value(numbers) for _ in range(3)}
        thought = text(numbers, 4)
        fits = carried(form, thought, Action(tool=ToolCall("any", arguments=arguments)))
        assert fits or any(piece in thought + str(arguments) for piece in HARD[name]), arguments


def test_a_random_search_is_read_as_it_was_or_refused() -> None:
    numbers, form = random.Random(0), get("search_r1").with_tools([SEARCH])
    for _ in range(500):
        query = text(numbers, 6)
        fits = carried(form, "a", Action(tool=ToolCall("search", arguments={"query": query})))
        assert fits or query != query.strip() or any(p in query for p in HARD["search_r1"])


@pytest.mark.parametrize("name", ONE_TOOL)
def test_a_random_text_for_the_only_tool_is_read_as_it_was_or_refused(name: str) -> None:
    numbers, form = random.Random(name), get(name).with_tools([TEXT])
    for _ in range(500):
        said, thought = text(numbers, 6), text(numbers, 4)
        fits = carried(form, thought, Action(tool=ToolCall("run", arguments={"text": said})))
        hard = any(piece in thought + said for piece in HARD[name])
        assert fits or hard or said != said.strip(), (thought, said)


@pytest.mark.parametrize("name", WORLDS)
def test_a_random_answer_beside_tools_is_read_as_it_was_or_refused(name: str) -> None:
    tool = {"search_r1": SEARCH}.get(name, TEXT)
    numbers, form = random.Random(name), get(name).with_tools([tool], answers=True)
    hard = (*HARD[name], '"name"', "end task")
    for _ in range(1000):
        thought, answer = text(numbers, 6), text(numbers, 9)
        fits = carried(form, thought, Action(answer=answer))
        refused = any(piece in thought + answer for piece in hard) or answer != answer.strip()
        assert fits or refused or not answer.strip(), (thought, answer)


def test_what_a_format_cannot_express_is_refused() -> None:
    refused = {
        "think_answer": Action(answer="</answer>"),
        "react": Action(answer="a\nObservation: b"),
        "react_line": Action(answer="a\nb"),
        "code_block": Action(answer=" "),
        "search_r1": Action(tool=ToolCall("search", arguments={"query": "no tools here"})),
        "tool_calls": Action(answer="</tool_call>"),
        "hermes": Action(script="ls"),
        "action": Action(answer="</action>"),
        "code": Action(answer="```"),
        "bash_swe": Action(answer="```\n```bash"),
        "react_input": Action(answer="a\nAction: b"),
    }
    for name, action in refused.items():
        with pytest.raises(ValueError, match=f"{name} cannot express"):
            get(name).render("a", action)
    with pytest.raises(ValueError, match="think_answer cannot express"):
        get("think_answer").render("a", Action(ending="submit"))
