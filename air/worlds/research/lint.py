"""Lints an agent's edit of a Python file, to find the errors that the edit adds.

The errors are undefined names (F821, F822), duplicate arguments (F831), and errors of indentation (E111,
E112, E113), syntax (E999) and tokens (E902). The text is parsed with the Python version that runs air, which
may differ from the version in the agent's box.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from air.errors import InfrastructureError

MAX_BYTES = 500_000
"""The maximum total size, in bytes, of a file's text before and after an edit. Larger texts are not
linted."""
MOST = 10
"""The maximum number of errors that each of the lists `new` and `rest` of a `LintResult` reports with their
text. Further errors are only counted."""
SECONDS = 30.0
AT_ONCE = os.cpu_count() or 1
"""The maximum number of linter processes that run at the same time in each event loop. Further edits wait."""
_LONGEST_REASON = 200
_slots: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
_PROGRAM = Path(__file__).with_name("lint_worker.py")


@dataclass(frozen=True)
class Finding:
    """An error that the linter reports: its code, its line (counted from 1) and its message."""

    code: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.code} {self.message}"


@dataclass(frozen=True)
class Findings:
    """A list of errors, shortened: the first errors in full, and the number of all errors."""

    first: tuple[Finding, ...] = ()
    """The first errors, at most `MOST`."""
    count: int = 0
    """The number of all errors, including those that are not in `first`."""

    def __bool__(self) -> bool:
        return self.count > 0

    def __str__(self) -> str:
        more = self.count - len(self.first)
        return "\n".join([*map(str, self.first), *([f"and {more} more"] if more else [])])


@dataclass(frozen=True)
class LintResult:
    """The result of linting one edit."""

    new: Findings = Findings()
    """The errors that the edit adds. If there are any, the edit is refused."""
    rest: Findings = Findings()
    """The other errors in the text after the edit. They do not cause a refusal."""
    given_up: str = ""
    """The reason why the text was not linted; empty if it was."""


async def lint_edit(before: str, after: str) -> LintResult:
    """Lints the text of a Python file before and after an edit. Returns the errors that the edit adds and the
    other errors, or the reason why the text was not linted.

    If the text before the edit does not parse, no error counts as added, so that the agent can repair the
    file step by step. Raises InfrastructureError if the linter program fails even on a harmless text.
    """
    if _exceed(before, after):
        return LintResult(given_up=f"before and after have more than {MAX_BYTES} bytes")
    async with _slots.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(AT_ONCE)):
        answer = await _attributed(before, after)
    if isinstance(answer, str):
        return LintResult(given_up=answer)
    return LintResult(new=_findings(answer["new"]), rest=_findings(answer["rest"]))


def _exceed(*texts: str) -> bool:
    """Returns whether the texts together have more than `MAX_BYTES` bytes in UTF-8. If they have more than
    `MAX_BYTES` characters, the answer is known without encoding them."""
    if sum(map(len, texts)) > MAX_BYTES:
        return True
    return sum(len(text.encode("utf-8", "replace")) for text in texts) > MAX_BYTES


def _findings(answer: dict[str, Any]) -> Findings:
    return Findings(tuple(Finding(*one) for one in answer["first"]), answer["count"])


async def _attributed(before: str, after: str) -> dict[str, Any] | str:
    """Lints the text before and after an edit, and returns the JSON object that the linter program prints,
    or, if these texts were not linted, the reason as a string. If the program fails, a harmless text shows
    whether these texts are the cause. Raises InfrastructureError if the program fails on the harmless text,
    too."""
    try:
        return await _ask(before, after)
    except InfrastructureError as error:
        await _ask("", "x = 1\n")
        return str(error)


async def _ask(before: str, after: str) -> dict[str, Any] | str:
    """Lints a Python file with the text `before` before an edit and `after` after it, by running the linter
    program in a separate process. Returns the JSON object that the program prints: `new` has the errors that
    the edit adds, `rest` the other errors in `after`. If the texts are too hard to lint (the program takes
    too long, crashes or gives up), returns the reason as text. Raises InfrastructureError if the program
    exits with an error status."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", str(_PROGRAM)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd="/",
        env={},
    )
    request = json.dumps({"before": before, "after": after, "most": MOST}).encode()
    try:
        out, err = await asyncio.wait_for(process.communicate(request), SECONDS)
    except TimeoutError:
        return f"it took over {SECONDS:g} s"
    finally:
        if process.returncode is None:
            process.kill()
        status = await process.wait()
    if status < 0:
        return f"the parser was ended by signal {-status}"
    if status:
        last = (err.decode("utf-8", "replace").strip().splitlines() or ["no output"])[-1]
        raise InfrastructureError(f"the linter failed: {last[:_LONGEST_REASON]}")
    answer: dict[str, Any] = json.loads(out)
    return str(answer["given_up"]) if "given_up" in answer else answer
