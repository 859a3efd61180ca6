"""Replies of any length and shape are parsed in time that grows linearly with their length."""

from __future__ import annotations

import random
import shlex
from collections.abc import Callable

import pytest

from air.actions import ActionFormat, FormatError, Message, get, words
from tests.growth import MOST, growth

FENCED: dict[str, Callable[[int], str]] = {
    "blocks that only open": lambda n: "```bash\n" * n,
    "fences with spaces": lambda n: "```bash\n" + ("```" + " " * 9 + "x\n") * n,
    "empty lines": lambda n: "```bash\n" + "\n" * n + "```",
    "lines": lambda n: "```bash\n" + "true\n" * n + "```",
}
MLGYM: dict[str, Callable[[int], str]] = {
    "empty lines first": lambda n: "```\n" + "\n" * n + "ls\n```",
    "empty lines last": lambda n: "```\nls" + "\n" * n + "```",
    "a long word": lambda n: "```\nopen " + "a" * n + "\n```",
    "a long quoted word": lambda n: '```\nopen "' + 'a\\"' * n + '"\n```',
    "an open quote": lambda n: '```\nopen "' + "a\\b" * n + "\n```",
    "many words": lambda n: "```\nls\necho " + "a " * n + "\n```",
    "many fences": lambda n: "````\n" * n,
    "a note": lambda n: "```\nmemory_write '" + "a" * n + "'\n```",
    "an edit": lambda n: "```\nedit 1:1\n" + "a\n" * n + "end_of_edit\n```",
}
WORLDS: dict[str, tuple[str, Callable[[int], str]]] = {
    "answers": ("think_answer", lambda n: "<answer>" * n),
    "answers that end": ("think_answer", lambda n: "</answer>" * n),
    "nested thoughts": ("think_answer", lambda n: "<think>" * n + "</think>" * n),
    "a thought of tags": ("think_answer", lambda n: "<think>" + "<answer" * n + "</think>"),
    "spaces": ("think_answer", lambda n: "<answer>" + " \n" * n + "</answer>"),
    "searches": ("search_r1", lambda n: "<search>a</search>" * n),
    "actions": ("react", lambda n: "Action: a\n" * n),
    "thoughts": ("react", lambda n: "Action:" + "\n Though" * n),
    "lines": ("react_line", lambda n: "Action: a" + "\n" * n + "b"),
    "fences": ("code_block", lambda n: "```\n" * n),
    "fences of spaces": ("code_block", lambda n: "```\n" + ("```" + " " * 9 + "x\n") * n),
    "nested objects": ("hermes", lambda n: "<tool_call>" + '{"a":' * n),
    "nested lists": ("hermes", lambda n: "<tool_call>" + "[" * n + "]" * n + "</tool_call>"),
    "an escaped string": ("hermes", lambda n: '<tool_call>{"name": "' + '\\"' * n + "</tool_call>"),
    "many values": ("hermes", lambda n: "<tool_call>[" + "{}," * n + "1]</tool_call>"),
    "many arguments": (
        "hermes",
        lambda n: (
            '<tool_call>{"name": "act", "arguments": {"action": "'
            + "a" * n
            + '", '
            + '"b": 1, ' * n
            + '"c": 1}}</tool_call>'
        ),
    ),
}


def parse(form: ActionFormat) -> Callable[[str], object]:
    def use(reply: str) -> object:
        try:
            return form.read(Message(reply))
        except FormatError as error:
            return error

    return use


@pytest.mark.parametrize("shape", FENCED)
def test_fenced_replies_take_linear_time(shape: str) -> None:
    assert growth(FENCED[shape], parse(get("fenced"))) < MOST


@pytest.mark.parametrize("shape", MLGYM)
def test_mlgym_replies_take_linear_time(shape: str) -> None:
    assert growth(MLGYM[shape], parse(get("mlgym"))) < MOST


@pytest.mark.parametrize("shape", WORLDS)
def test_replies_in_worlds_take_linear_time(shape: str) -> None:
    name, reply = WORLDS[shape]
    assert growth(reply, parse(get(name))) < MOST


def test_words_are_those_of_a_shell() -> None:
    numbers = random.Random(0)
    for _ in range(20_000):
        text = "".join(numbers.choices("ab '\"\\\t\n#é\0", k=numbers.randrange(9)))
        try:
            expected: list[str] | None = shlex.split(text)
        except ValueError:
            expected = None
        try:
            found: list[str] | None = words.split(text)
        except ValueError:
            found = None
        assert found == expected, text
