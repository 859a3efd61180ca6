"""Extracts the code from a model's completion.

If a request has `custom_extract_logic`, this file also runs as a program inside a box. So it uses only the
standard library, and imports nothing of air.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["fenced", "incomplete_fenced", "heuristic", "empty"]
"""How the code in a completion was found: between code fences, after an opening fence that is not closed, by
its look in a text without fences, or not at all."""
FENCED, INCOMPLETE, HEURISTIC = 30, 20, 10
"""The priorities of code blocks by the way in which they were found; the highest number is preferred."""
KINDS: dict[int, Kind] = {FENCED: "fenced", INCOMPLETE: "incomplete_fenced", HEURISTIC: "heuristic"}
_ALIASES = {
    "python": "python py python3",
    "cpp": "cpp c++ cc cxx",
    "c": "c",
    "nodejs": "javascript js node nodejs",
    "typescript": "typescript ts",
    "go": "go golang",
    "csharp": "csharp c# cs",
    "bash": "bash sh shell",
    "rust": "rust rs",
    "julia": "julia jl",
    "ruby": "ruby rb",
    "perl": "perl pl",
    "kotlin": "kotlin kt",
}
_LANGUAGES = {alias: name for name, aliases in _ALIASES.items() for alias in aliases.split()}
_TOP_LEVEL = re.compile(r"(import|from|def|class|async def|@)\b|@")


@dataclass
class CodeBlock:
    """A piece of code in a completion. Of the blocks with the highest priority, the first one in the
    requested language is used."""

    priority: int
    language: str
    code: str


def language_of(tag: str) -> str:
    """Returns the name of the language for the tag after a code fence, e.g. `cpp` for `C++`."""
    tag = tag.strip()
    return _LANGUAGES.get(tag.lower(), tag.lower() if tag != "R" else "R")


def extract_fenced_code(completion: str) -> list[CodeBlock]:
    """Returns the code blocks between an opening and a closing fence (lines that begin with three
    backticks)."""
    return [block for block in _fences(completion) if block.priority == FENCED]


def extract_incomplete_fenced_code(completion: str) -> list[CodeBlock]:
    """Returns the code block after an opening fence that is never closed, as a list with at most one
    element."""
    return [block for block in _fences(completion) if block.priority == INCOMPLETE]


def _fences(completion: str) -> list[CodeBlock]:
    blocks: list[CodeBlock] = []
    tag = ""
    lines: list[str] | None = None
    for line in completion.split("\n"):
        if lines is None:
            before, fence, rest = line.partition("```")
            if fence and not before.strip() and "`" not in rest:
                tag, lines = rest, []
        elif line.strip() == "```":
            blocks.append(CodeBlock(FENCED, language_of(tag), "\n".join(lines)))
            lines = None
        else:
            lines.append(line)
    if lines is not None:
        blocks.append(CodeBlock(INCOMPLETE, language_of(tag), "\n".join(lines)))
    return blocks


def extract_heuristic_code(completion: str, language: str = "") -> list[CodeBlock]:
    """Returns the parts of a text without fences that look like code in `language`: Python, SQL or bash."""
    if language == "python":
        return [CodeBlock(HEURISTIC, language, code) for code in _python(completion)]
    if language == "sql":
        queries = re.findall(r"^\s*(?:select|with)\b[^;]*", completion, re.M | re.I)
        return [CodeBlock(HEURISTIC, language, query) for query in queries]
    if language == "bash":
        return [CodeBlock(HEURISTIC, language, completion)]
    return []


def _python(completion: str) -> list[str]:
    """Returns a list with one text: the code of all imports, functions and classes in the completion. The
    list is empty if the completion has no function or class."""
    kept: list[str] = []
    inside = False
    for line in completion.split("\n"):
        if line[:1].isspace() or not line.strip():
            if inside:
                kept.append(line)
        else:
            inside = bool(_TOP_LEVEL.match(line))
            if inside:
                kept.append(line)
    code = "\n".join(kept)
    return [code] if re.search(r"^(async def|def|class) .*:", code, re.M) else []


def extract(completion: str, language: str, custom: list[CodeBlock]) -> tuple[str, Kind]:
    """Returns the code in a completion, and how it was found (see `Kind`). If the completion has several code
    blocks, `CodeBlock` says which one is used. `custom` are code blocks that the request's own extraction
    code has found."""
    blocks = [
        *_fences(completion),
        *extract_heuristic_code(completion, language),
        *custom,
    ]
    if not blocks:
        return "", "empty"
    best = max(block.priority for block in blocks)
    blocks = [block for block in blocks if block.priority == best]
    wanted = [block for block in blocks if block.language == language]
    return (wanted or blocks)[0].code, KINDS.get(best, "fenced")


def without_entry_point(code: str, language: str) -> str:
    """Returns `code` without its main program, such as `if __name__ == "__main__":`, so that tests can be
    appended."""
    marks = {"python": ('if __name__ == "__main__":', "if __name__ == '__main__':")}
    for mark in marks.get(language, ()):
        code = code.partition(mark)[0]
    if language == "cpp":
        code = re.split(r"\bint main\(", code)[0]
    if language == "go":
        code = code.replace("package main", "")
    return code.partition("# Example usage")[0]


def run_custom(logic: str, completion: str) -> list[CodeBlock]:
    """Runs `logic`, a request's own extraction code, and returns the code blocks that it submits. Call it
    only inside a box."""
    blocks: list[CodeBlock] = []
    names: dict[str, Any] = {
        "CodeBlock": CodeBlock,
        "completion": completion,
        "submit_code_blocks": blocks.extend,
        "extract_fenced_code": extract_fenced_code,
        "extract_heuristic_code": extract_heuristic_code,
    }
    exec(logic, names)
    return blocks


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    found = run_custom(asked["logic"], asked["completion"])
    with open("blocks.json", "w", encoding="utf-8") as file:  # noqa: PTH123
        json.dump([vars(block) for block in found], file)
