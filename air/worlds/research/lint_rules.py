"""The program that lints Python texts, in a separate process because a text may crash Python's parser.

It reads `{"texts": [...]}` from standard input and writes `{"found": [[[code, line, message], ...], ...]}`,
or `{"given_up": reason}` if a text is too large or too deeply nested. It never executes a text.
"""

from __future__ import annotations

import ast
import io
import json
import resource
import sys
import warnings
from typing import Any

import pycodestyle
from pyflakes import checker, messages

Found = tuple[str, int, str]
MEMORY_BYTES = 1 << 30
CPU_SECONDS = 30
_NAMES = {
    messages.UndefinedName: "F821",
    messages.UndefinedExport: "F822",
    messages.DuplicateArgument: "F831",
}
_INDENTATION = ("E111", "E112", "E113")
_TOKENS = "E901 TokenError: "


class _Report(pycodestyle.BaseReport):  # type: ignore[misc]  # it ships no types
    """A pycodestyle report that collects only errors of indentation and of tokens."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.found: list[Found] = []

    def error(self, line: int, offset: int, text: str, check: Any) -> None:
        code, _, message = text.partition(" ")
        if code in _INDENTATION:
            self.found.append((code, line, message))
        elif text.startswith(_TOKENS):
            self.found.append(("E902", line, text.removeprefix(_TOKENS)))


def lint(text: str) -> list[Found]:
    """Returns the errors in one Python text as (code, line, message), sorted by line.

    Raises RecursionError or MemoryError if the text is too large or too deeply nested for the parser.
    """
    text = text.removeprefix("\ufeff")  # a byte order mark is no error
    errors = _indentation(text)
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:  # ValueError: a NUL, or digits without end
        line = getattr(error, "lineno", None) or 1
        errors = [one for one in errors if one[0] != "E902"]  # the same error, at the end
        errors.append(("E999", line, getattr(error, "msg", None) or str(error)))
    else:
        for message in checker.Checker(tree, filename="file").messages:
            if code := _NAMES.get(type(message)):
                errors.append((code, message.lineno, message.message % message.message_args))
    return sorted(errors, key=lambda one: one[1])


def _indentation(text: str) -> list[Found]:
    guide = pycodestyle.StyleGuide(select=[*_INDENTATION, "E901"], reporter=_Report)
    lines = io.StringIO(text, newline="").readlines()
    style = pycodestyle.Checker(lines=lines, options=guide.options)
    style.check_all()
    found: list[Found] = style.report.found
    return found


def main() -> None:
    """Reads texts from standard input, lints them, and writes the errors to standard output, as JSON."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    warnings.simplefilter("ignore")
    pycodestyle.USER_CONFIG = None  # ignore the settings of the user
    request = json.load(sys.stdin)
    try:
        answer: dict[str, Any] = {"found": [lint(text) for text in request["texts"]]}
    except (RecursionError, MemoryError) as error:
        answer = {"given_up": f"it is too much for the parser ({type(error).__name__})"}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
