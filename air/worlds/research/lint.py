"""What an edit does to a Python file: which errors of lint it brings.

Codes: undefined names (F821), undefined names in `__all__` (F822), duplicate arguments (F831), indentation
(E111, E112, E113), syntax (E999) and tokens (E902), by pyflakes, pycodestyle and Python's own parser, in
the version of Python that the harness runs on.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from air.errors import InfrastructureError

MAX_BYTES = 500_000
"""Longer texts are not linted."""
SECONDS = 30.0
_BROKEN = {"E902", "E999"}
_PROGRAM = Path(__file__).with_name("lint_program.py")


@dataclass(frozen=True)
class Finding:
    """One error of lint."""

    code: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.code} {self.message}"


@dataclass(frozen=True)
class Verdict:
    """What an edit brings."""

    new: tuple[Finding, ...] = ()
    """Errors that were not there before; a reason to refuse."""
    rest: tuple[Finding, ...] = ()
    """Errors that are there afterwards and no reason to refuse."""
    given_up: str = ""
    """Why nothing is known; empty where something is."""


async def judge(before: str, after: str) -> Verdict:
    """Compares a file's text before and after an edit.

    A text that did not parse hides all but its first error, so nothing that shows after an edit of
    it counts as new: it can be repaired step by step.

    Raises:
        InfrastructureError: the linter itself does not work.
    """
    if len(before.encode("utf-8", "replace")) + len(after.encode("utf-8", "replace")) > MAX_BYTES:
        return Verdict(given_up=f"before and after have more than {MAX_BYTES} bytes")
    answer = await _ask([before, after])
    if isinstance(answer, str):
        return Verdict(given_up=answer)
    was, now = answer
    if any(one.code in _BROKEN for one in was):
        return Verdict(rest=tuple(now))
    new = _beyond(was, now)
    return Verdict(new=tuple(new), rest=tuple(one for one in now if one not in new))


def _beyond(was: list[Finding], now: list[Finding]) -> list[Finding]:
    """What there is more of than before; lines move, so only code and message are compared."""
    left = Counter((one.code, one.message) for one in was)
    new = []
    for one in now:
        if left[one.code, one.message] > 0:
            left[one.code, one.message] -= 1
        else:
            new.append(one)
    return new


async def _ask(texts: list[str]) -> list[list[Finding]] | str:
    """The findings in each text, or why there are none."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", str(_PROGRAM)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd="/",
        env={},
    )
    request = json.dumps({"texts": texts}).encode()
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
    answer = json.loads(out)
    if "given_up" in answer:
        return str(answer["given_up"])
    return [[Finding(*one) for one in found] for found in answer["found"]]
