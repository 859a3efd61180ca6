"""The tools on files of any size and shape: the time grows linearly, and a slow answer never blocks
others."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

import pytest

from air.sandbox.contract.box import Box
from air.tools.workbench.box_files import TextFile
from air.tools.workbench.numbered_lines import NumberedLines
from air.worlds.base import Refusal
from air.worlds.research import lint
from air.worlds.research.lint_worker import judge
from air.worlds.research.memory import NOTE_BYTES, Memory
from air.worlds.research.search import in_file
from tests.growth import MOST, growth
from tests.unit.worlds.conftest import Use

SHAPES: dict[str, Callable[[int], str]] = {
    "line feeds": lambda n: "\n" * 64 * n,
    "short lines": lambda n: "a\n" * 32 * n,
    "one line": lambda n: "a" * 64 * n,
    "carriage returns": lambda n: "a\r\n" * 20 * n,
    "wide characters": lambda n: "é\U0001f600\n" * 20 * n,
}


def split(text: str) -> list[str]:
    """The lines by definition."""
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def use_every_way(lines: NumberedLines) -> None:
    total = len(lines)
    for first in (1, total // 2 + 1, total):
        lines.between(first, first + 100)
        lines.replaced(first, first, ("x",))
    for text in ("a", "\r", "x", "aaaaaaa\r"):
        with suppress(Refusal):
            in_file(TextFile("a", lines, exact=True), text)


@pytest.mark.parametrize("shape", SHAPES)
def test_lines_take_linear_time(shape: str) -> None:
    assert growth(SHAPES[shape], lambda text: use_every_way(NumberedLines(text))) < MOST


def test_lines_are_those_of_a_split_text() -> None:
    numbers = random.Random(0)
    for _ in range(3000):
        text = "".join(numbers.choices("ab\n\n\r\u2028", k=numbers.randrange(9)))
        text = text * numbers.choice((1, 1, 1, 1, 1, 2000))
        lines, expected = NumberedLines(text), split(text)
        assert len(lines) == len(expected)
        first = numbers.randrange(1, len(expected) + 2)
        last = numbers.choice((first, first - 1, numbers.randrange(1, len(expected) + 3)))
        assert lines.between(first, last) == expected[first - 1 : last]
        found = [(n, line) for n, line in enumerate(expected, start=1) if "a\r" in line]
        assert lines.having("a\r", 7) == found[:7]
        assert lines.having("a\nb", 7) == []
        if last >= first - 1:
            body = ["x"] * numbers.randrange(3)
            new = "".join(f"{line}\n" for line in [*expected[: first - 1], *body, *expected[last:]])
            ends = last < len(expected) and not text.endswith("\n")
            assert lines.replaced(first, last, body).text == (
                new.removesuffix("\n") if ends else new
            )


def test_new_errors_are_found_in_linear_time() -> None:
    assert growth(lambda n: "a\n" * n, lambda text: judge("", text)) < MOST


async def test_an_edit_that_brings_10000_errors_is_refused_with_ten(box: Box, use: Use) -> None:
    await box.write("a.py", b"x = 1\n")
    await use("open", "a.py")
    names = ("a" * 400, *("y" for _ in range(9_999)))
    shown = await use("edit", "1:1", body=names)
    assert shown.startswith("Not edited. It would bring:\nline 1: F821 undefined name 'aaa")
    assert "line 10: F821 undefined name 'y'\nand 9990 more\n" in shown
    verdict = await lint.lint_edit("", "a" * 400)
    assert [len(one.message) for one in verdict.new.first] == [300]


async def test_numbers_with_thousands_of_digits_are_refused(box: Box, use: Use) -> None:
    await box.write("a.txt", b"line\n" * 3)
    for word in ("0000000001" + "0" * 5000, "0000000001" + "9", "9" * 5000):
        assert "is no line of" in await use("open", "a.txt", word)
    assert "1:line" in await use("open", "a.txt", "2")


def test_a_query_longer_than_a_note_is_refused() -> None:
    memory = Memory()
    memory.write("a note")
    with pytest.raises(Refusal, match="the query has more than 4000 bytes"):
        memory.read("a " * NOTE_BYTES)


@pytest.mark.parametrize("word", ["a\0b", "a\ud800b", "a" * 300_000, "a/" * 5000, "~", "\r"])
async def test_odd_words_are_answered_by_every_tool(box: Box, use: Use, word: str) -> None:
    await box.write("a.txt", b"line\n")
    await use("open", "a.txt")
    for name in ("open", "create", "search_dir", "search_file", "find_file", "memory_read"):
        assert await use(name, word)
    assert await use("search_dir", "x", word)
    assert await use("insert", "1", body=(word,))
