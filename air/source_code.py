"""Reads Python source code without its docstrings and comments, which have no effect on results.

The digests of worlds and tools are hashes of this code. So a recorded episode can still be replayed after a
docstring or comment was changed.
"""

from __future__ import annotations

import ast
import inspect
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_Cut = tuple[int, int, int, int, bytes]
"""A piece of source text to replace: its first line, the start in that line, its last line, the end in that
line, and the replacement. Lines count from 0; starts and ends are offsets in bytes."""

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_of_file(path: Path) -> str:
    """Returns the source text of a Python file with `...` in place of docstrings, and without comments.
    Raises SyntaxError for a file that is not Python."""
    text = path.read_text("utf-8")
    lines = text.encode().split(b"\n")
    for first, start, last, end, filler in sorted(
        [*_docstrings(text), *_comments(text)], reverse=True
    ):
        lines[first : last + 1] = [lines[first][:start] + filler + lines[last][end:]]
    return b"\n".join(line.rstrip() for line in lines).decode()


def code_of_function(function: Any) -> str:
    """Returns `code_of_file` of the file that defines a function, a class, or the class of a callable object.
    Returns an empty text if there is no such file, such as for a builtin."""
    while not isinstance(function, type) and not hasattr(function, "__code__"):
        inner: Any = getattr(function, "func", None) or getattr(function, "__func__", None)
        function = inner if inner is not None else type(function)
    try:
        file = inspect.getsourcefile(function)
    except TypeError:  # a builtin
        file = None
    return code_of_file(Path(file)) if file and Path(file).is_file() else ""


def _docstrings(text: str) -> Iterator[_Cut]:
    """Yields a cut for each docstring in a Python source text, also for those below an assignment. The cut
    replaces the docstring by `...`."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, _DOCUMENTED):
            continue
        before: ast.stmt | None = None
        for statement in node.body:
            if _is_text(statement) and (
                before is None or isinstance(before, ast.Assign | ast.AnnAssign)
            ):
                yield (
                    statement.lineno - 1,
                    statement.col_offset,
                    (statement.end_lineno or statement.lineno) - 1,
                    statement.end_col_offset or 0,
                    b"...",
                )
            before = statement


def _is_text(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Constant):
        return False
    return isinstance(statement.value.value, str)


def _comments(text: str) -> Iterator[_Cut]:
    """Yields a cut for each comment in a Python source text, which removes the comment."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            start = len(token.line[:column].encode())
            yield row - 1, start, row - 1, start + len(token.string.encode()), b""
