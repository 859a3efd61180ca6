"""Extracts the code from a completion, the text that a model wrote in answer to a programming problem.

If a request has its own extraction code (`custom_extract_logic`), this file also runs as a program inside a
box (container), which executes that code. So it uses only the standard library, and imports nothing of
air.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["fenced", "incomplete_fenced", "heuristic", "empty"]
"""How the code in a completion (a model's answer) was found: `fenced`, between code fences;
`incomplete_fenced`, after an opening fence that is not closed; `heuristic`, by its look in a text without
fences; `empty`, not at all."""
FENCED, INCOMPLETE, HEURISTIC = 30, 20, 10
"""The priorities of code blocks: between code fences, after a fence that is not closed, and found in a text
without fences. Of the blocks in a completion (a model's answer), those with the highest priority are used."""
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
_QUERY = re.compile(r"^[^\S\n]*(?:select|with)\b[^;]*", re.M | re.I)
"""Matches an SQL query, which begins on a line of its own. The spaces before it are those of this line alone:
with `\\s*`, every line break in a row of them would be searched up to the end of the row."""


@dataclass
class CodeBlock:
    """A piece of code that was found in a completion (a model's answer), with its programming language. If
    there are several pieces, those with the highest `priority` count, and of these the first one in the
    requested language."""

    priority: int
    language: str
    code: str


def language_of(tag: str) -> str:
    """Returns SandboxFusion's name of the language for the word `tag` after a code fence, such as `cpp` for
    `C++`."""
    tag = tag.strip()
    return _LANGUAGES.get(tag.lower(), tag.lower() if tag != "R" else "R")


def extract_fenced_code(completion: str) -> list[CodeBlock]:
    """Returns the code blocks between an opening and a closing code fence (lines that begin with three
    backticks)."""
    return [block for block in _fences(completion) if block.priority == FENCED]


def extract_incomplete_fenced_code(completion: str) -> list[CodeBlock]:
    """Returns a list with the code block after an opening code fence that is never closed; an empty list if
    there is none."""
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
    """Returns the parts of a completion (a model's answer without code fences) that look like code in
    `language`. For `bash`, this is the whole text; for languages other than `python`, `sql` and `bash`, the
    list is empty."""
    if language == "python":
        return [CodeBlock(HEURISTIC, language, code) for code in _python(completion)]
    if language == "sql":
        return [CodeBlock(HEURISTIC, language, query) for query in _QUERY.findall(completion)]
    if language == "bash":
        return [CodeBlock(HEURISTIC, language, completion)]
    return []


def _python(completion: str) -> list[str]:
    """Returns a list with one string: the code of all imports, functions and classes in the completion. The
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
    """Returns the code in a completion (a model's answer), and how it was found (see `Kind`). Of several code
    blocks, those with the highest priority count, and of these the first one in `language`, or the first one
    if none is in it. `custom` are further code blocks, which the request's own extraction code has found."""
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
    """Returns `code` without its main program, such as the part from `if __name__ == "__main__":` on, so that
    tests can be appended."""
    marks = {"python": ('if __name__ == "__main__":', "if __name__ == '__main__':")}
    for mark in marks.get(language, ()):
        code = code.partition(mark)[0]
    if language == "cpp":
        code = re.split(r"\bint main\(", code)[0]
    if language == "go":
        code = code.replace("package main", "")
    return code.partition("# Example usage")[0]


def run_custom(logic: str, completion: str) -> list[CodeBlock]:
    """Executes `logic`, the request's own extraction code, and returns the code blocks that it submits. Call
    it only inside a box (container), because the code is not trusted."""
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
