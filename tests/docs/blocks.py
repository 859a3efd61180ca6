"""The code blocks of README and docs: where they are, what they hold, and whether they are run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "tasks/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
LANGUAGES = ("sh", "python", "toml", "json")
"""Languages whose blocks are code. `text` is for what is only read."""
_FENCE = re.compile(r"^(`{3,})(\w*)$")
_MARK = re.compile(r"^<!-- (not run|parsed only): (.+) -->$")


@dataclass(frozen=True)
class Block:
    """One code block of a page."""

    page: Path
    line: int
    """Where it begins, counted from 1."""
    language: str
    text: str
    how: Literal["run", "parsed only", "not run"]
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    """Every fenced block of a page.

    Raises:
        AssertionError: a block does not end.
    """
    lines = page.read_text(encoding="utf-8").splitlines()
    at = 0
    while at < len(lines):
        opened = _FENCE.match(lines[at])
        if opened is None:
            at += 1
            continue
        end = next((n for n in range(at + 1, len(lines)) if lines[n] == opened[1]), None)
        assert end is not None, f"{page}:{at + 1}: a block does not end"
        mark = _MARK.match(lines[at - 1]) if at else None
        text = "\n".join(lines[at + 1 : end]) + "\n"
        how, reason = (mark[1], mark[2]) if mark else ("run", "")
        yield Block(page, at + 1, opened[2], text, how, reason)  # type: ignore[arg-type]
        at = end + 1


def all_blocks() -> list[Block]:
    """Every block of every page."""
    return [block for page in PAGES for block in blocks(page)]


def commands(script: str) -> Iterator[list[str]]:
    """The simple commands of a shell script, as arguments; comments are left out."""
    for line in script.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;")
        lexer.whitespace_split = True
        command: list[str] = []
        for token in lexer:
            if token and not token.strip("|&;"):
                if command:
                    yield command
                command = []
            else:
                command.append(token)
        if command:
            yield command
