"""Formats text as numbered lines, one window of lines at a time. Long text is cut, and each cut is marked."""

from __future__ import annotations

from collections.abc import Sequence

SHOWN_BYTES = 64_000
"""The largest size, in bytes, of a text that a tool shows."""
LINE_CHARS = 1000
"""The longest line that is shown whole; longer lines are cut."""
PATH_CHARS = 200
"""The longest path that a prompt shows whole; longer paths lose their beginning."""


def split(text: str) -> list[str]:
    """Returns the lines of a text without their line ends; only a line feed ends a line."""
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def join(lines: Sequence[str]) -> str:
    """Returns a text of these lines, each ended by a line feed."""
    return "".join(line + "\n" for line in lines)


def around(line: int, total: int, window: int) -> int:
    """Returns the first line of a window that shows `line` a little below its top; lines count from 1."""
    return clamp(line - window // 6, total, window)


def clamp(first: int, total: int, window: int) -> int:
    """Returns `first`, limited so that the window does not begin before line 1 nor pass the file's end."""
    return max(1, min(first, total - window + 1))


def numbered(lines: Sequence[str], first: int, last: int) -> str:
    """Returns lines `first` to `last` (both included, counted from 1), each with its number."""
    shown = range(first, min(last, len(lines)) + 1)
    return "\n".join(f"{n}:{shortened(lines[n - 1])}" for n in shown)


def shortened(line: str) -> str:
    """Returns a line as the tools show it: cut after `LINE_CHARS` characters, with a mark."""
    line = line.rstrip("\r")
    over = len(line) - LINE_CHARS
    return line if over <= 0 else f"{line[:LINE_CHARS]} [… {over} characters cut …]"


def one_line(path: str) -> str:
    """Returns a path as a prompt shows it: short, and without line breaks or unprintable characters."""
    shown = "".join(c if c.isprintable() else "?" for c in path)
    return shown if len(shown) <= PATH_CHARS else f"…{shown[-PATH_CHARS:]}"


def bounded(text: str) -> tuple[str, bool]:
    """Returns `text`, without its middle if it is longer than `SHOWN_BYTES`, and whether it was cut."""
    data = text.encode("utf-8", "replace")
    over = len(data) - SHOWN_BYTES
    if over <= 0:
        return data.decode(), False
    head, tail = data[: SHOWN_BYTES // 2], data[-SHOWN_BYTES // 2 :]
    mark = f"\n[… {over} bytes cut …]\n"
    return head.decode("utf-8", "ignore") + mark + tail.decode("utf-8", "ignore"), True
