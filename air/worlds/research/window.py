"""Formats a file's text for the agent: numbered lines, of which a limited number (the window) is shown.

Long texts and long lines are cut, and each cut is marked in the text.
"""

from __future__ import annotations

from collections.abc import Sequence

SHOWN_BYTES = 64_000
"""The largest size, in bytes, of a text that a tool shows."""
LINE_CHARS = 1000
"""The largest number of characters of a line that are shown; longer lines are cut."""
PATH_CHARS = 200
"""The largest number of characters of a path that a prompt shows; a longer path loses its beginning."""


def split(text: str) -> list[str]:
    """Returns the lines of a text without their line ends; only a line feed ends a line."""
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def join(lines: Sequence[str]) -> str:
    """Returns the text that consists of these lines, each ended by a line feed."""
    return "".join(line + "\n" for line in lines)


def around(line: int, total: int, window: int) -> int:
    """Returns the number of the first line to show, so that `line` stands a little below the window's top.

    Args:
        line: the number of the line to show, counted from 1.
        total: the number of lines in the file.
        window: the number of lines that are shown at once.
    """
    return clamp(line - window // 6, total, window)


def clamp(first: int, total: int, window: int) -> int:
    """Returns the number of the window's first line, changed as little as possible to stay within the file.

    Args:
        first: the wanted number of the window's first line, counted from 1.
        total: the number of lines in the file.
        window: the number of lines that are shown at once.
    """
    return max(1, min(first, total - window + 1))


def numbered(lines: Sequence[str], first: int, last: int) -> str:
    """Returns the lines `first` to `last` as one text, with the line number before each line.

    Lines are counted from 1, and both ends are included.
    """
    shown = range(first, min(last, len(lines)) + 1)
    return "\n".join(f"{n}:{shortened(lines[n - 1])}" for n in shown)


def shortened(line: str) -> str:
    """Returns a line as the agent sees it: cut after `LINE_CHARS` characters, with a mark at the cut."""
    line = line.rstrip("\r")
    over = len(line) - LINE_CHARS
    return line if over <= 0 else f"{line[:LINE_CHARS]} [… {over} characters cut …]"


def one_line(path: str) -> str:
    """Returns a path in the form in which a prompt shows it: one line of limited length.

    Unprintable characters and line breaks become `?`, and the beginning of a long path is cut off.
    """
    shown = "".join(c if c.isprintable() else "?" for c in path)
    return shown if len(shown) <= PATH_CHARS else f"…{shown[-PATH_CHARS:]}"


def bounded(text: str) -> tuple[str, bool]:
    """Limits a text to `SHOWN_BYTES` bytes: if the text is longer, its middle is cut out.

    Returns the text, and whether the text was cut.
    """
    data = text.encode("utf-8", "replace")
    over = len(data) - SHOWN_BYTES
    if over <= 0:
        return data.decode(), False
    head, tail = data[: SHOWN_BYTES // 2], data[-SHOWN_BYTES // 2 :]
    mark = f"\n[… {over} bytes cut …]\n"
    return head.decode("utf-8", "ignore") + mark + tail.decode("utf-8", "ignore"), True
