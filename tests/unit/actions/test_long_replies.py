"""Replies of any length and shape are parsed in time that grows linearly with their length."""

from __future__ import annotations

import random
import shlex
from collections.abc import Callable

import pytest

from air.actions import Fenced, FormatError, MLGym, words
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


def parse(form: Fenced | MLGym) -> Callable[[str], object]:
    def use(reply: str) -> object:
        try:
            return form.parse(reply)
        except FormatError as error:
            return error

    return use


@pytest.mark.parametrize("shape", FENCED)
def test_fenced_replies_take_linear_time(shape: str) -> None:
    assert growth(FENCED[shape], parse(Fenced())) < MOST


@pytest.mark.parametrize("shape", MLGYM)
def test_mlgym_replies_take_linear_time(shape: str) -> None:
    assert growth(MLGYM[shape], parse(MLGym())) < MOST


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
