"""Compares mathematical expressions in worker processes (`worker.py`), which are reused. If a comparison
fails, finds out whether the cause is an expression or the machine.

If an expression exceeds the limit of time or memory, or crashes the process, the result is None, and the
answers count as not equal. If the process ends for another reason, for example because the machine runs out
of memory, a harmless comparison is tried, and then the original comparison again. If the harmless comparison
fails too, InfrastructureError is raised. If only the original comparison fails again, its expressions are at
fault, and the result is None.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from air.errors import InfrastructureError, MissingError
from air.rewards.answers import worker

_LOG = logging.getLogger(__name__)

SECONDS = 2.5
"""The limit of CPU time for one comparison, in seconds. Most comparisons need less than a tenth of a
second."""
_CLEARLY = 1e-3
"""The relative difference above which two values differ clearly. It is far more than what rounding to six
significant digits can explain, the fewest with which a decimal counts as rounded."""
_PATIENCE = 30
"""The wall-time limit of a comparison as a multiple of its CPU-time limit. It is high, because comparisons
are slow on a loaded machine."""
_OF_THE_EXPRESSION = {
    1,
    *(-s for s in (signal.SIGPROF, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE)),
}
"""The exit statuses that an expression can cause: out of memory, a reached limit, or a crash of the
interpreter."""


@dataclass(frozen=True)
class Expression:
    """A mathematical expression in LaTeX."""

    latex: str
    decimals: int | None = None
    """The number of digits after the point, if the expression is a rounded decimal; else None."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a comparison of two answers: whether they are equal, and the CPU time used."""

    equal: bool | None
    """Whether the answers are equal; None if they cannot be compared within the limits."""
    seconds: float = 0.0
    """The CPU time, in seconds, that a worker process needed for the comparison."""


@dataclass(frozen=True)
class Values:
    """The values of an expression at the same points as those of every other expression."""

    numbers: tuple[complex, ...] | None
    """The values; None if there are none, or they cannot be computed within the limits."""
    seconds: float = 0.0
    """The CPU time, in seconds, that a worker process needed."""

    def differ(self, other: Values) -> bool:
        """Returns whether the values of two expressions differ so much at one of the points that these cannot
        be equal, however their numbers were rounded. False if one of them has no values."""
        pairs = zip(self.numbers or (), other.numbers or (), strict=False)
        return any(
            abs(one - another) > _CLEARLY * max(abs(one), abs(another), 1e-9)
            for one, another in pairs
        )


def compare(
    gold: worker.Tree,
    prediction: worker.Tree,
    gold_leaves: Sequence[Expression],
    prediction_leaves: Sequence[Expression],
    known: Sequence[Sequence[bool | None]],
) -> Outcome:
    """Finds out in a worker process whether two mathematical answers are equal. Each is a tree of parts (see
    `worker.Tree`): `gold` is the right answer, with the expressions `gold_leaves`, and `prediction` the
    predicted answer, with the expressions `prediction_leaves`.

    `known[i][j]` says whether expression i of the gold answer equals expression j of the prediction, if this
    is already known; else it is None. Raises InfrastructureError if the comparison fails for another reason
    than the expressions, and MissingError if math-verify is not installed.
    """
    reply = _replied(_request(gold, prediction, gold_leaves, prediction_leaves, known))
    return Outcome(reply.get("equal"), reply["seconds"])


def values(expression: Expression) -> Values:
    """Evaluates an expression in a worker process, its variables at fixed numbers. Raises the errors of
    `compare`."""
    reply = _replied(json.dumps({"expression": expression.latex, "seconds": SECONDS}).encode())
    numbers = reply.get("values")
    return Values(numbers and tuple(complex(*pair) for pair in numbers), reply["seconds"])


def _replied(request: bytes) -> dict[str, Any]:
    """Returns the response to a request. It has only `seconds` if an expression exceeded a limit, crashed the
    process, or is at fault if the request fails again and again. Raises InfrastructureError."""
    with _at_once:
        try:
            return _tried(request)
        except InfrastructureError as error:
            failure = error
        _tried(_HARMLESS)
        with contextlib.suppress(InfrastructureError):  # logged below
            return _tried(request)
        _LOG.warning("an answer counts as wrong, since its comparison fails: %s", failure)
        return {"seconds": SECONDS}


def _request(
    gold: worker.Tree,
    prediction: worker.Tree,
    gold_leaves: Sequence[Expression],
    prediction_leaves: Sequence[Expression],
    known: Sequence[Sequence[bool | None]],
) -> bytes:
    request = {
        "gold": gold,
        "prediction": prediction,
        "gold_leaves": [(e.latex, e.decimals) for e in gold_leaves],
        "prediction_leaves": [(e.latex, e.decimals) for e in prediction_leaves],
        "known": known,
        "seconds": SECONDS,
    }
    return json.dumps(request).encode()


_HARMLESS = _request(0, 0, [Expression("x + 1")], [Expression("1 + x")], [[None]])
"""A request for a comparison that a working process can always do."""


def _tried(request: bytes) -> dict[str, Any]:
    """Lets a worker process answer a request (JSON) once, and returns the response. It has only `seconds` if
    an expression exceeded a limit or crashed the process. Raises InfrastructureError if the process ended for
    another reason."""
    reply: dict[str, Any] = json.loads(_asked(request))
    status = reply.get("status")
    if status is None:
        return reply
    if status in _OF_THE_EXPRESSION:
        return {"seconds": reply["seconds"]}
    reason = f": {reply['error']}" if reply["error"] else ""
    raise InfrastructureError(f"the process of a comparison ended with status {status}{reason}")


def check_installed() -> None:
    """Raises MissingError if the package math-verify is not installed."""
    if importlib.util.find_spec("math_verify") is None:
        raise MissingError(
            "mathematical equality needs the package math-verify",
            remedy="install it: pip install 'air-agent[tools]'",
        )


_at_once = threading.BoundedSemaphore(os.cpu_count() or 1)
_workers: dict[int, list[_Worker]] = {}
"""The idle worker processes, by the id of the process that started them: a forked process must not use the
workers of its parent."""


def _asked(request: bytes) -> bytes:
    idle = _workers.setdefault(os.getpid(), [])
    try:
        process = idle.pop()
    except IndexError:
        process = _Worker()
    try:
        reply = process.ask(request, SECONDS * _PATIENCE)
    except BaseException:  # interrupts too: its late reply would answer the next request
        process.close()
        raise
    idle.append(process)
    return reply


class _Worker:
    """A process that runs the program `worker.py`, which compares mathematical expressions."""

    def __init__(self) -> None:
        check_installed()
        keep = ("LD_LIBRARY_PATH", "PATH", "PYTHONPATH", "VIRTUAL_ENV")
        try:
            self._process = subprocess.Popen(
                [sys.executable, worker.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={name: os.environ[name] for name in keep if name in os.environ},
                bufsize=0,
            )
        except OSError as error:
            raise InfrastructureError(f"no process for a comparison: {error}") from error

    def ask(self, request: bytes, patience: float) -> bytes:
        """Sends a request (JSON) to the process and returns its response, a line of JSON. Raises
        InfrastructureError if no response comes within `patience` seconds, or if the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            view = memoryview(request + b"\n")
            while view:
                view = view[os.write(self._process.stdin.fileno(), view) :]
        reader = self._process.stdout.fileno()
        poll = select.poll()
        poll.register(reader, select.POLLIN)
        deadline, reply = time.monotonic() + patience, b""
        while not reply.endswith(b"\n"):
            seconds = deadline - time.monotonic()
            if seconds <= 0 or not poll.poll(seconds * 1000):
                raise InfrastructureError(f"no result of a comparison after {patience:g} seconds")
            data = os.read(reader, 65536)
            if not data:
                raise InfrastructureError("the process that compares expressions has ended")
            reply += data
        return reply

    def close(self) -> None:
        """Ends the process, with SIGKILL if necessary."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(0.5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@atexit.register
def _close_workers() -> None:
    idle = _workers.get(os.getpid(), [])
    while idle:
        idle.pop().close()
