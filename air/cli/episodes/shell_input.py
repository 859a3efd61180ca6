"""What a person types into `air shell`, or writes into a script for it.

One entry is one of:

    a line              an action by itself: a command, `validate`, `submit`, or one of the format's tools
    ``` … ```           an action of several lines, from a line that opens a fence to the one that closes it
    :reply … .          a whole reply, exactly as a model would write it, up to a line with a single dot
    :NAME …             a command of the shell itself

Blank lines, and lines that begin with `#`, are nothing.
Only `\\n` ends a line: whatever else stands in one is the action's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from air.errors import ConfigError, UsageError

_FENCE = re.compile(r"^ {0,3}(`{3,})[^`]*$")
_NUMBER = re.compile("[0-9]{1,9}")


@dataclass(frozen=True)
class Entry:
    """One entry."""

    reply: str = ""
    """What the model would have said; empty where it is a command of the shell."""
    command: str | None = None
    """Its name, as it was typed: empty after a lone colon. None where it is a reply."""
    rest: str = ""
    """What follows the name."""
    line: int = 0
    """Where it begins, counted from 1."""


def entry(next_line: Callable[[bool], str]) -> Entry | None:
    """The next entry; None for a line that is nothing.

    Args:
        next_line: the next line, without its end; given whether it begins an entry. Raises EOFError.

    Raises:
        EOFError: there is none, or it does not end.
    """
    line = next_line(True)
    text = line.strip()
    if not text or text.startswith("#"):
        return None
    if text == ":reply":
        lines = []
        while (more := next_line(False)) != ".":
            lines.append(more)
        return Entry(reply="\n".join(lines))
    if text.startswith(":"):
        name, _, rest = text[1:].partition(" ")
        return Entry(command=name, rest=rest.strip())
    if fence := _FENCE.match(line):
        lines = [line]
        while not _closes(lines[-1], fence[1]) or len(lines) == 1:
            lines.append(next_line(False))
        return Entry(reply="\n".join(lines))
    return Entry(reply=f"```\n{line}\n```")


def number(text: str, where: str) -> int:
    """A number, as it is typed after a command.

    Raises:
        UsageError: it is none.
    """
    if not _NUMBER.fullmatch(text):
        raise UsageError(f"{text!r} is no number", where=where)
    return int(text)


def _closes(line: str, fence: str) -> bool:
    mark = line.strip()
    return len(mark) >= len(fence) and not mark.strip("`")


def script(text: str, where: str, commands: Sequence[str]) -> list[Entry]:
    """All entries of a script.

    Raises:
        ConfigError: one does not end, or a command is not known.
    """
    lines, at, found = text.split("\n"), 0, []

    def next_line(_: bool) -> str:
        nonlocal at
        if at == len(lines):
            raise EOFError
        at += 1
        return lines[at - 1]

    while at < len(lines):
        began = at + 1
        try:
            one = entry(next_line)
        except EOFError:
            raise ConfigError("what begins here does not end", where=f"{where}:{began}") from None
        if one is None:
            continue
        if one.command is not None and one.command not in commands:
            raise ConfigError(
                f"there is no command :{one.command}",
                where=f"{where}:{began}",
                remedy=f"use one of: {', '.join(commands)}",
            )
        found.append(Entry(one.reply, one.command, one.rest, began))
    return found
