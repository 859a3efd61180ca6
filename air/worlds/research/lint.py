"""Finds the lint errors that an agent's edit adds to a Python file.

They are undefined names (F821, F822), duplicate arguments (F831), and errors of indentation (E111, E112,
E113), syntax (E999) and tokens (E902), for the version of Python that runs air, not the box's.
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
"""The largest size, in bytes, of the texts before and after an edit together; larger ones are not linted."""
SECONDS = 30.0
_BROKEN = {"E902", "E999"}
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
class Verdict:
    """The linter's result for one edit."""

    new: tuple[Finding, ...] = ()
    """The errors that the edit adds; the edit is refused if there are any."""
    rest: tuple[Finding, ...] = ()
    """The other errors in the text after the edit; the edit is not refused because of these."""
    given_up: str = ""
    """The reason why the text was not linted; empty if the text was linted."""


async def judge(before: str, after: str) -> Verdict:
    """Lints a text before and after an edit. Returns the errors that the edit adds, and the other errors.

    If the text before does not parse, no error counts as added, so that the agent can repair it step by step.
    Raises InfrastructureError if the linter program failed.
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
    """Returns the errors that `was` contains fewer times, by code and message: an edit moves lines."""
    left = Counter((one.code, one.message) for one in was)
    new = []
    for one in now:
        if left[one.code, one.message] > 0:
            left[one.code, one.message] -= 1
        else:
            new.append(one)
    return new


async def _ask(texts: list[str]) -> list[list[Finding]] | str:
    """Lints in a separate process. Returns each text's errors, or the reason why they were not linted."""
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
