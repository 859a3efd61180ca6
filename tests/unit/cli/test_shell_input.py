"""What is typed into `air shell`, or stands in a script for it, as entries."""

from __future__ import annotations

import pytest

from air.cli.episodes import shell_input
from air.cli.episodes.shell_output import Screen
from air.errors import ConfigError, UsageError


def test_what_is_typed() -> None:
    text = "ls\n\n# no\n```bash\na\n\n# b\n```\n:reply\nI\n```\nx\n```\n.\n:undo\n:save a b\n````\n```\n````"
    found = shell_input.script(text, "s", ("undo", "save"))
    assert [one.reply for one in found] == [
        "```\nls\n```",
        "```bash\na\n\n# b\n```",
        "I\n```\nx\n```",
        "",
        "",
        "````\n```\n````",
    ]
    assert [(one.command, one.rest) for one in found][3:5] == [("undo", ""), ("save", "a b")]
    assert [one.line for one in found] == [1, 4, 9, 15, 16, 17]
    for wrong in ("```\nls", ":reply\nx", ":other"):
        with pytest.raises(ConfigError):
            shell_input.script(wrong, "s", ("undo",))


@pytest.mark.parametrize("line", [":", ": > config", ":\tundo"])
def test_a_colon_without_a_name_is_no_turn(line: str) -> None:
    with pytest.raises(ConfigError, match=r"s:2: there is no command :.* use one of: undo, save"):
        shell_input.script(f"ls\n{line}\n", "s", ("undo", "save"))
    (found,) = shell_input.script(f"```\n{line}\n```", "s", ())
    assert (found.command, found.reply) == (None, f"```\n{line}\n```")


def test_only_a_newline_ends_a_line() -> None:
    action = "printf 'a\x0bb\x0cc\x1cd\x85e\u2028f\r'"
    first, second = shell_input.script(f"{action}\r\n:reply\na\r\nb\u2029.\n.\n", "s", ())
    assert first.reply == f"```\n{action}\r\n```"
    assert second.reply == "a\r\nb\u2029."


def test_numbers_are_plain_digits() -> None:
    assert [shell_input.number(text, ":log") for text in ("0", "07", "123456789")] == [
        0,
        7,
        123456789,
    ]
    for text in ("²", "٣", "-1", "1.5", "x", "1\n", "9" * 5000):
        with pytest.raises(UsageError, match=r"^:log: .* is not a number$"):
            shell_input.number(text, ":log")


def test_nothing_is_no_expectation() -> None:
    with pytest.raises(UsageError, match=":expect: needs a text"):
        Screen(as_json=True).expect("")
