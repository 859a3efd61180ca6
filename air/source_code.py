"""Reads Python source code without its docstrings, comments and blank lines, which have no effect on results.

Hashes of this code identify the versions of worlds (what agents act in) and tools. So a recorded episode
still counts as recorded with the same version after a docstring, a comment or a blank line was changed.
"""

from __future__ import annotations

import ast
import inspect
import io
import tokenize
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

_Cut = tuple[int, int, int, int, bytes]
"""A piece of source text to replace: (first line, start in the first line, last line, end in the last line,
replacement). Lines count from 0; starts and ends are offsets in bytes."""

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_of_file(path: Path) -> str:
    """Returns the source text of a Python file without docstrings, comments, blank lines and trailing spaces.
    The contents of all other string literals stay unchanged. A docstring that is the only statement of a
    function becomes `...`, which the syntax needs. Raises SyntaxError for a file that is not Python."""
    with tokenize.open(path) as file:  # in the encoding that the file declares
        return _code(file.read() + "\n")


@lru_cache(maxsize=1024)
def _code(text: str) -> str:
    """Returns the source text `text` without docstrings, comments, blank lines and trailing spaces (see
    `code_of_file`). Results are cached: a long file takes 20 ms, and each load of a world reads about a dozen
    files."""
    lines = text.encode().split(b"\n")
    in_string = _rows_in_strings(text)
    for first, start, last, end, filler in sorted(
        [*_docstrings(text, lines), *_comments(text)], reverse=True
    ):
        line = lines[first][:start] + filler + lines[last][end:]
        lines[first : last + 1] = [line, *[b""] * (last - first)]
        in_string.difference_update(range(first, last))
        if last in in_string:  # the end of the line, which is part of the first line now
            in_string.remove(last)
            in_string.add(first)
    code: list[bytes] = []
    continued = False
    for row, line in enumerate(lines):
        if row not in in_string:
            line = line.rstrip()
            if not line and not continued:  # a blank line after a backslash ends the statement
                continue
        code.append(line)
        continued = row not in in_string and line.endswith(b"\\")
    return b"\n".join(code).decode()


def code_of_function(function: Any) -> str:
    """Returns the code (see `code_of_file`) of the whole file that defines `function`: a function, a class,
    or a callable object, for which the file of its class counts. Returns an empty string if there is no such
    file, as for a builtin."""
    while not isinstance(function, type) and not hasattr(function, "__code__"):
        inner: Any = getattr(function, "func", None) or getattr(function, "__func__", None)
        function = inner if inner is not None else type(function)
    try:
        file = inspect.getsourcefile(function)
    except TypeError:  # a builtin
        file = None
    return code_of_file(Path(file)) if file and Path(file).is_file() else ""


def _docstrings(text: str, lines: Sequence[bytes]) -> Iterator[_Cut]:
    """Yields a cut (piece to replace) for each docstring in a Python source text, also for those below an
    assignment. The cut removes the docstring, or replaces it by `...` if it is the only statement of a
    function or class, or shares a line with another statement. `lines` are the lines of `text` as bytes."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, _DOCUMENTED):
            continue
        before: ast.stmt | None = None
        is_needed = len(node.body) == 1 and not isinstance(node, ast.Module)
        for statement in node.body:
            if _is_text(statement) and (
                before is None or isinstance(before, ast.Assign | ast.AnnAssign)
            ):
                first, start = statement.lineno - 1, statement.col_offset
                last = (statement.end_lineno or statement.lineno) - 1
                end = statement.end_col_offset or 0
                rest = lines[last][end:].strip()
                is_alone = not lines[first][:start].strip() and rest[:1] in (b"", b"#")
                yield first, start, last, end, b"" if is_alone and not is_needed else b"..."
            before = statement


def _is_text(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Constant):
        return False
    return isinstance(statement.value.value, str)


def _rows_in_strings(text: str) -> set[int]:
    """Returns the numbers, from 0, of the lines in a Python source text that end within a string literal."""
    rows: set[int] = set()
    starts: list[int] = []  # the first lines of the f-strings that are open, from Python 3.12
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        kind, first, last = tokenize.tok_name[token.type], token.start[0] - 1, token.end[0] - 1
        if kind == "FSTRING_START":
            starts.append(first)
        elif kind == "FSTRING_END":
            rows.update(range(starts.pop(), last))
        elif kind == "STRING":
            rows.update(range(first, last))
    return rows


def _comments(text: str) -> Iterator[_Cut]:
    """Yields a cut (piece to replace) for each comment in a Python source text. The cut removes the
    comment."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            start = len(token.line[:column].encode())
            yield row - 1, start, row - 1, start + len(token.string.encode()), b""
