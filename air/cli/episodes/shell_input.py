"""Parses the input of `air shell`: lines that a person types, or a script.

The input is a sequence of entries. Each entry is one of:

    a line              an action: a shell command, `validate`, `submit`, or a tool of the action format
    ``` … ```           an action of several lines between two fences
    :reply … .          a whole reply, exactly as a model would write it; a line with a single dot ends it
    :NAME …             a command for `air shell` itself, such as `:undo`

Blank lines and lines that begin with `#` are ignored. Only `\\n` ends a line. `history` keeps the typed lines
for later sessions.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from air import paths
from air.errors import ConfigError, UsageError

_FENCE = re.compile(r"^ {0,3}(`{3,})[^`]*$")
_NUMBER = re.compile("[0-9]{1,9}")


@dataclass(frozen=True)
class Entry:
    """One input of `air shell`: either a reply (for a typed action, the reply that contains this action), or
    a command such as `:undo`."""

    reply: str = ""
    """The reply, as a model would write it. For a typed action, this is the action between two fences (```),
    which is the syntax of the action format `fenced`. Empty if the entry is a command."""
    action: str | None = None
    """The typed action without fences, from which a reply in another action format can be made. None if the
    entry is a whole reply or a command."""
    command: str | None = None
    """The command's name without the colon; empty if only a colon was typed. None if the entry is a reply."""
    rest: str = ""
    """The text after the command's name."""
    line: int = 0
    """Number of the entry's first line in its script, counted from 1; 0 for an entry typed at the prompt."""


def entry(next_line: Callable[[bool], str]) -> Entry | None:
    """Reads the next input (an action, a whole reply or a command), or returns None if the next line is blank
    or a comment.

    `next_line` is a function that returns the next line without its newline; its argument is true for the
    first line of an input. Raises EOFError if the lines end before the input is complete.
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
        return Entry(reply="\n".join(lines), action="\n".join(lines[1:-1]))
    return Entry(reply=f"```\n{line}\n```", action=line)


def number(text: str, where: str) -> int:
    """Parses `text` as a number with 1 to 9 digits. Raises UsageError for any other text; the message begins
    with `where`, the name of the command that needs the number."""
    if not _NUMBER.fullmatch(text):
        raise UsageError(f"{text!r} is not a number", where=where)
    return int(text)


def _closes(line: str, fence: str) -> bool:
    mark = line.strip()
    return len(mark) >= len(fence) and not mark.strip("`")


def script(text: str, where: str, commands: Sequence[str]) -> list[Entry]:
    """Parses the text of a script, and returns its entries (replies and commands) in order. `where` is the
    script's name for error messages; `commands` are the names of the allowed commands.

    Raises ConfigError if an entry has no end, or if a command is not allowed.
    """
    lines, at = text.split("\n"), 0
    entries: list[Entry] = []

    def next_line(_: bool) -> str:
        nonlocal at
        if at == len(lines):
            raise EOFError
        at += 1
        return lines[at - 1]

    while at < len(lines):
        first = at + 1
        try:
            one = entry(next_line)
        except EOFError:
            raise ConfigError(
                "the entry that begins here has no end", where=f"{where}:{first}"
            ) from None
        if one is None:
            continue
        if one.command is not None and one.command not in commands:
            raise ConfigError(
                f"there is no command :{one.command}",
                where=f"{where}:{first}",
                remedy=f"use one of: {', '.join(commands)}",
            )
        entries.append(replace(one, line=first))
    return entries


@contextlib.contextmanager
def history() -> Iterator[None]:
    """Context manager: lets a person edit lines at the prompt and recall earlier lines, also from earlier
    sessions. Does nothing if Python has no module `readline`."""
    try:
        import readline
    except ImportError:
        yield
        return
    file = paths.cache() / "shell_history"
    with contextlib.suppress(OSError):  # the shell works without a history file
        readline.read_history_file(file)
    try:
        yield
    finally:
        readline.set_history_length(1000)
        with contextlib.suppress(OSError):
            readline.write_history_file(file)
