"""Compares expressions in processes that are kept for the next ones (`worker.py`), and tells whose failure a
failure is.

An expression that reaches a limit of time or memory, or makes the process crash, is not equal. If something
else ends the process, such as the kernel of a machine with little memory, harmless expressions are compared,
and then the same ones again. If these end their process again, they are at fault, and not equal. If the
harmless ones cannot be compared either, that is an InfrastructureError.
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

from air.errors import InfrastructureError, MissingError
from air.rewards.answers import worker

_LOG = logging.getLogger(__name__)

SECONDS = 2.5
"""The limit of CPU time of one comparison. Most need less than a tenth of a second."""
_PATIENCE = 30
"""A comparison may take this many times its CPU time by the clock, on a loaded machine."""
_OF_THE_EXPRESSION = {
    1,
    *(-s for s in (signal.SIGPROF, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE)),
}
"""Exit statuses that an expression can cause: too much memory, a limit, a crash of the interpreter."""


@dataclass(frozen=True)
class Expression:
    """An expression in LaTeX."""

    latex: str
    decimals: int | None = None
    """If it is a rounded decimal: the number of its digits after the point."""


def equal(
    gold: Sequence[Expression],
    prediction: Sequence[Expression],
    known: Sequence[Sequence[bool | None]],
    *,
    ordered: bool,
) -> bool:
    """Tells whether each gold expression has a predicted one of its own that is equal, at its own place if
    they are ordered. `known[i][j]` tells what is known of the gold i and the prediction j. Raises
    InfrastructureError unless the expressions are at fault, and MissingError without math-verify."""
    request = _request(gold, prediction, known, ordered=ordered)
    with _at_once:
        try:
            return _compared(request)
        except InfrastructureError as error:
            failure = error
        _compared(_HARMLESS)
        with contextlib.suppress(InfrastructureError):  # logged below
            return _compared(request)
        _LOG.warning("an answer counts as wrong, since its comparison fails: %s", failure)
        return False


def _request(
    gold: Sequence[Expression],
    prediction: Sequence[Expression],
    known: Sequence[Sequence[bool | None]],
    *,
    ordered: bool,
) -> bytes:
    request = {
        "gold": [(e.latex, e.decimals) for e in gold],
        "prediction": [(e.latex, e.decimals) for e in prediction],
        "known": known,
        "ordered": ordered,
        "seconds": SECONDS,
    }
    return json.dumps(request).encode()


_HARMLESS = _request([Expression("x + 1")], [Expression("1 + x")], [[None]], ordered=True)
"""A comparison that every process can do."""


def _compared(request: bytes) -> bool:
    """Returns the result of one comparison. Raises InfrastructureError if something but a limit of the
    process ended it."""
    reply = json.loads(_asked(request))
    status = reply.get("status")
    if status is None:
        return bool(reply["equal"])
    if status in _OF_THE_EXPRESSION:
        return False
    raise InfrastructureError(f"the process of a comparison ended with status {status}")


def check_installed() -> None:
    """Raises MissingError without the packages that compare expressions."""
    if importlib.util.find_spec("math_verify") is None:
        raise MissingError(
            "mathematical equality needs the package math-verify",
            remedy="install it: pip install 'air-agent[tools]'",
        )


_at_once = threading.BoundedSemaphore(os.cpu_count() or 1)
_workers: dict[int, list[_Worker]] = {}
"""The idle ones by the id of their parent: a forked process must not use those of its own parent."""


def _asked(request: bytes) -> bytes:
    idle = _workers.setdefault(os.getpid(), [])
    try:
        process = idle.pop()
    except IndexError:
        process = _Worker()
    try:
        reply = process.ask(request, SECONDS * _PATIENCE)
    except BaseException:
        process.close()
        raise
    idle.append(process)
    return reply


class _Worker:
    """A process of `worker.py`."""

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
        """Sends a request and returns the reply. Raises InfrastructureError if there is none after
        `patience` seconds, or the process has ended."""
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
        """Ends the process."""
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
