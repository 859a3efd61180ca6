"""Text as numbered lines, a window at a time; everything shown is bounded, and every cut is disclosed."""

from __future__ import annotations

from collections.abc import Sequence

SHOWN_BYTES = 64_000
"""Most bytes of one thing shown."""
LINE_CHARS = 1000
"""Longer lines are cut."""
PATH_CHARS = 200
"""Longer paths lose their beginning in a prompt."""


def split(text: str) -> list[str]:
    """The lines of a file without their line ends; only a line feed ends a line."""
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def join(lines: Sequence[str]) -> str:
    """A file of these lines, each ended."""
    return "".join(line + "\n" for line in lines)


def around(line: int, total: int, window: int) -> int:
    """The first line of the window that shows `line` a little below its top; lines count from 1."""
    return clamp(line - window // 6, total, window)


def clamp(first: int, total: int, window: int) -> int:
    """`first`, kept where a window of a file of `total` lines can begin."""
    return max(1, min(first, total - window + 1))


def numbered(lines: Sequence[str], first: int, last: int) -> str:
    """Lines `first` to `last`, each with its number; counted from 1, both included."""
    shown = range(first, min(last, len(lines)) + 1)
    return "\n".join(f"{n}:{shortened(lines[n - 1])}" for n in shown)


def shortened(line: str) -> str:
    """One line as it is shown."""
    line = line.rstrip("\r")
    over = len(line) - LINE_CHARS
    return line if over <= 0 else f"{line[:LINE_CHARS]} [… {over} characters cut …]"


def one_line(path: str) -> str:
    """A path as a prompt shows it, whatever the agent has named it: short, and without line breaks."""
    shown = "".join(c if c.isprintable() else "?" for c in path)
    return shown if len(shown) <= PATH_CHARS else f"…{shown[-PATH_CHARS:]}"


def bounded(text: str) -> tuple[str, bool]:
    """`text`, plain Unicode, its middle taken out where it is longer than SHOWN_BYTES; and whether."""
    data = text.encode("utf-8", "replace")
    over = len(data) - SHOWN_BYTES
    if over <= 0:
        return data.decode(), False
    head, tail = data[: SHOWN_BYTES // 2], data[-SHOWN_BYTES // 2 :]
    mark = f"\n[… {over} bytes cut …]\n"
    return head.decode("utf-8", "ignore") + mark + tail.decode("utf-8", "ignore"), True
