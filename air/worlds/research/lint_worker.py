"""A program that lints Python source texts, for `air.worlds.research.lint`. It runs in a separate process,
because a text may crash Python's parser.

Standard input is a JSON object `{"before": text, "after": text, "most": number}`. Standard output is
`{"new": errors, "rest": errors}`: the errors in `after` that are not in `before`, and the other errors in
`after`. Each of the two is `{"first": [[code, line, message], ...], "count": number}`, with at most `most`
errors in `first`. If a text is too large or too deeply nested, the output is `{"given_up": reason}`
instead. The texts are never executed.
"""

from __future__ import annotations

import ast
import io
import json
import resource
import sys
import warnings
from collections import Counter
from typing import Any

import pycodestyle
from pyflakes import checker, messages

Found = tuple[str, int, str]
MEMORY_BYTES = 1 << 30
CPU_SECONDS = 30
MESSAGE_CHARS = 300
"""The maximum length of a reported error message, in characters."""
_BROKEN = {"E902", "E999"}
_NAMES = {
    messages.UndefinedName: "F821",
    messages.UndefinedExport: "F822",
    messages.DuplicateArgument: "F831",
}
_INDENTATION = ("E111", "E112", "E113")
_TOKENS = "E901 TokenError: "


class _Collector(pycodestyle.BaseReport):  # type: ignore[misc]  # it ships no types
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
    text = text.removeprefix("\ufeff")  # a byte order mark is not an error
    errors = _indentation(text)
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:  # ValueError: a NUL, or too many digits
        line = getattr(error, "lineno", None) or 1
        errors = [one for one in errors if one[0] != "E902"]  # the same error, at the end
        errors.append(("E999", line, getattr(error, "msg", None) or str(error)))
    else:
        for message in checker.Checker(tree, filename="file").messages:
            if code := _NAMES.get(type(message)):
                errors.append((code, message.lineno, message.message % message.message_args))
    return sorted(errors, key=lambda one: one[1])


def _indentation(text: str) -> list[Found]:
    guide = pycodestyle.StyleGuide(select=[*_INDENTATION, "E901"], reporter=_Collector)
    lines = io.StringIO(text, newline="").readlines()
    style = pycodestyle.Checker(lines=lines, options=guide.options)
    style.check_all()
    found: list[Found] = style.report.found
    return found


def judge(before: str, after: str) -> tuple[list[Found], list[Found]]:
    """Returns two lists: the new errors, which occur more often in `after` than in `before`, and the other
    errors in `after`.

    Errors are compared by code and message but not by line, because an edit moves lines. If `before` does
    not parse, no error counts as new.
    """
    was, now = lint(before), lint(after)
    if any(code in _BROKEN for code, _, _ in was):
        return [], now
    left = Counter((code, message) for code, _, message in was)
    new: list[Found] = []
    rest: list[Found] = []
    for one in now:
        code, _, message = one
        left[code, message] -= 1
        (new if left[code, message] < 0 else rest).append(one)
    return new, rest


def _report(errors: list[Found], most: int) -> dict[str, Any]:
    first = [(code, line, message[:MESSAGE_CHARS]) for code, line, message in errors[:most]]
    return {"first": first, "count": len(errors)}


def main() -> None:
    """Reads a request from standard input, lints the texts, and writes the response to standard output."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    warnings.simplefilter("ignore")
    pycodestyle.USER_CONFIG = None  # ignore the settings of the user
    request, answer = json.load(sys.stdin), dict[str, Any]()
    try:
        new, rest = judge(request["before"], request["after"])
        answer = {"new": _report(new, request["most"]), "rest": _report(rest, request["most"])}
    except (RecursionError, MemoryError) as error:
        answer = {"given_up": f"it is too much for the parser ({type(error).__name__})"}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
