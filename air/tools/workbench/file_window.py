"""Formats a file's text for the agent, which sees a limited number of lines at a time (a window), each with
its number."""

from __future__ import annotations

from collections.abc import Sequence

SHOWN_BYTES = 64_000
"""The maximum size, in bytes, of the text that one observation (the text that the model sees after a call)
contains."""
LINE_CHARS = 1000
"""The maximum number of characters of a line that the model sees; longer lines are cut."""
PATH_CHARS = 200
"""The maximum number of characters of a path in a prompt; a longer path loses its beginning."""


def around(line: int, total: int, window: int) -> int:
    """Returns the number of the first line of a window of `window` lines that shows `line` near its top:
    about a sixth of the window is above it. Lines count from 1; `total` is the number of lines in the
    file."""
    return clamp(line - window // 6, total, window)


def clamp(first: int, total: int, window: int) -> int:
    """Returns the number of the first line of a window of `window` lines in a file of `total` lines. This is
    `first`, unless the window would reach beyond the file; then it is the nearest possible line."""
    return max(1, min(first, total - window + 1))


def numbered(lines: Sequence[str], first: int) -> str:
    """Returns lines as one string, each with its number before it, such as `7:import os`. Long lines are cut.
    `first` is the number of the first line."""
    return "\n".join(f"{n}:{shortened(line)}" for n, line in enumerate(lines, start=first))


def shortened(line: str) -> str:
    """Returns a line as the model sees it: cut after `LINE_CHARS` characters, with a note that gives the
    number of missing characters."""
    line = line.rstrip("\r")
    over = len(line) - LINE_CHARS
    return line if over <= 0 else f"{line[:LINE_CHARS]} [… {over} characters cut …]"


def one_line(path: str) -> str:
    """Returns a path for a prompt: unprintable characters become `?`, and a long path loses its beginning."""
    text = "".join(c if c.isprintable() else "?" for c in path)
    return text if len(text) <= PATH_CHARS else f"…{text[-PATH_CHARS:]}"


def bounded(text: str) -> tuple[str, bool]:
    """Returns a pair: `text` and False or, if `text` is larger than `SHOWN_BYTES` bytes, `text` with a note
    instead of its middle and True."""
    data = text.encode("utf-8", "replace")
    over = len(data) - SHOWN_BYTES
    if over <= 0:
        return data.decode(), False
    head, tail = data[: SHOWN_BYTES // 2], data[-SHOWN_BYTES // 2 :]
    mark = f"\n[… {over} bytes cut …]\n"
    return head.decode("utf-8", "ignore") + mark + tail.decode("utf-8", "ignore"), True


def whole_number(word: str) -> int | None:
    """Parses `word` as a number from 0 to 999,999,999. Returns None if it is anything else."""
    return int(word) if word.isascii() and word.isdigit() and len(word) < 10 else None
