"""Finds the lint errors that an agent's edit adds to a Python file.

They are undefined names (F821, F822), duplicate arguments (F831), and errors of indentation (E111, E112,
E113), syntax (E999) and tokens (E902), for the version of Python that runs air, not the box's.
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
"""The largest size, in bytes, of the texts before and after an edit together; larger ones are not linted."""
MOST = 10
"""The largest number of errors of one kind that are reported with their text; the others are only counted."""
SECONDS = 30.0
AT_ONCE = os.cpu_count() or 1
"""The largest number of linters that run at the same time in this process; further edits wait."""
_slots: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
_PROGRAM = Path(__file__).with_name("lint_rules.py")


@dataclass(frozen=True)
class Finding:
    """One error that the linter reports: its code, its line (counted from 1) and its message."""

    code: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.code} {self.message}"


@dataclass(frozen=True)
class Findings:
    """The errors of one kind that the linter found in a text."""

    first: tuple[Finding, ...] = ()
    """The first errors that the linter found, at most `MOST`."""
    count: int = 0
    """The number of all errors that the linter found."""

    def __bool__(self) -> bool:
        return self.count > 0

    def __str__(self) -> str:
        more = self.count - len(self.first)
        return "\n".join([*map(str, self.first), *([f"and {more} more"] if more else [])])


@dataclass(frozen=True)
class Verdict:
    """The linter's result for one edit."""

    new: Findings = Findings()
    """The errors that the edit adds; the edit is refused if there are any."""
    rest: Findings = Findings()
    """The other errors in the text after the edit; the edit is not refused because of these."""
    given_up: str = ""
    """The reason why the text was not linted; empty if the text was linted."""


async def judge(before: str, after: str) -> Verdict:
    """Lints a text before and after an edit. Returns the errors that the edit adds, and the other errors.

    If the text before does not parse, no error counts as added, so that the agent can repair it step by step.
    Raises InfrastructureError if the linter program failed.
    """
    if _exceed(before, after):
        return Verdict(given_up=f"before and after have more than {MAX_BYTES} bytes")
    async with _slots.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(AT_ONCE)):
        answer = await _ask(before, after)
    if isinstance(answer, str):
        return Verdict(given_up=answer)
    return Verdict(new=_findings(answer["new"]), rest=_findings(answer["rest"]))


def _exceed(*texts: str) -> bool:
    """Whether the texts have more than `MAX_BYTES` together; only small texts are encoded to find out."""
    if sum(map(len, texts)) > MAX_BYTES:
        return True
    return sum(len(text.encode("utf-8", "replace")) for text in texts) > MAX_BYTES


def _findings(answer: dict[str, Any]) -> Findings:
    return Findings(tuple(Finding(*one) for one in answer["first"]), answer["count"])


async def _ask(before: str, after: str) -> dict[str, Any] | str:
    """Lints in a separate process. Returns its answer, or the reason why it did not lint."""
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
        raise InfrastructureError(f"the linter failed: {last}")
    answer: dict[str, Any] = json.loads(out)
    return str(answer["given_up"]) if "given_up" in answer else answer
