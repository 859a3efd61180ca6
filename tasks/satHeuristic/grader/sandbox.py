"""Runs somebody's Python file in a process of its own, as another user, and calls one function of it.

The file is never imported here. Its process gets the source, then one line of JSON for every call: whether
to load the file afresh, and the arguments; it answers each with one line of JSON. What it prints goes
nowhere; leaving early, an answer that is no JSON or spending too long is its fault and raises
`BadProgram`. What an answer means, and whether it is allowed, is for the caller to check.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

SECONDS = 20.0
"""Wall time for all calls together; the processor time has a tighter limit of its own."""
MAX_ANSWER = 1_000_000
"""Longest answer in bytes."""

RUNNER = r"""
import json, os, random, resource
for kind, most in (("CPU", 5), ("AS", 1 << 30), ("FSIZE", 1 << 20), ("CORE", 0)):
    resource.setrlimit(getattr(resource, "RLIMIT_" + kind), (most, most))
orders, answers = os.fdopen(os.dup(0), "rb"), os.dup(1)
null = os.open(os.devnull, os.O_RDWR)
for fd in (0, 1, 2):
    os.dup2(null, fd)

def say(kind, data):
    data = kind + data + b"\n"
    while data:
        data = data[os.write(answers, data):]

def serve():
    given = json.loads(orders.readline())
    code = compile(given["source"], given["file"], "exec")
    loaded = 0
    say(b"R", b"")
    for line in orders:
        afresh, arguments = json.loads(line)
        if afresh:
            random.seed(given["seed"] + loaded)
            loaded += 1
            space = {"__name__": "graded"}
            exec(code, space)
            function = space.get(given["function"])
            if not callable(function):
                raise TypeError("it defines no function " + given["function"])
        say(b"A", json.dumps(function(*arguments)).encode())

try:
    serve()
except BaseException as error:
    where, line = "", error.__traceback__
    while line is not None:
        if line.tb_frame.f_code.co_filename.endswith(".py"):
            where = " (line %d)" % line.tb_lineno
        line = line.tb_next
    text = "%s: %s%s" % (type(error).__name__, error, where)
    say(b"E", " ".join(text.split()).encode("utf-8", "replace")[:400])
    os._exit(1)
os._exit(0)
"""


class BadProgram(Exception):
    """The program crashed, left, answered wrongly or took too long; shown to the agent."""

    def __init__(self, message: str, *, remember: bool = True) -> None:
        super().__init__(message)
        self.remember = remember
        """Whether it would fail so again; a wall clock that ran out depends on the machine."""


class Program:
    """One live process that runs a file. Use through `with`."""

    def __init__(self, path: Path, function: str, seed: int, seconds: float = SECONDS) -> None:
        self._file, self._seconds = path.name, seconds
        hello = {
            "file": path.name,
            "function": function,
            "seed": seed,
            "source": _read_source(path),
        }
        self._hello = json.dumps(hello).encode() + b"\n"
        self._deadline = time.monotonic() + seconds
        self._process = _start()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._to, False)  # a program that never reads must not hold the grader up

    def __enter__(self) -> "Program":
        try:
            self._send(self._hello)
            self._answer(b"R")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()  # type: ignore[union-attr]
        self._process.stdout.close()  # type: ignore[union-attr]

    def call(self, *arguments: Any, afresh: bool = False) -> Any:
        """Calls the function; `afresh` loads the file anew first, which the first call must ask for.

        Raises:
            BadProgram: it did not answer with one line of JSON.
        """
        self._send(json.dumps([afresh, arguments]).encode() + b"\n")
        try:
            return json.loads(self._answer(b"A"), parse_constant=self._refuse)
        except (ValueError, RecursionError):
            raise BadProgram(f"{self._file} answered with something that is no JSON") from None

    def _refuse(self, constant: str) -> NoReturn:
        raise BadProgram(f"{self._file} returned {constant}, which is no number")

    def _send(self, data: bytes) -> None:
        try:
            while data:
                self._wait(self._to, select.POLLOUT)
                data = data[os.write(self._to, data) :]
        except BrokenPipeError:
            self._ended()

    def _answer(self, kind: bytes) -> bytes:
        """One line that begins with `kind`, without it."""
        line = b""
        while not line.endswith(b"\n"):
            self._wait(self._from, select.POLLIN)
            part = os.read(self._from, 65536)
            if not part:
                self._ended()
            line += part
            if len(line) > MAX_ANSWER:
                raise BadProgram(f"{self._file} answered with more than {MAX_ANSWER} bytes")
        if line[:1] == b"E":
            text = line[1:].decode("utf-8", "replace")[:500]
            raise BadProgram(f"{self._file} failed: " + " ".join(text.split()))
        if line[:1] != kind or line.count(b"\n") != 1:
            raise BadProgram(f"{self._file} answered out of turn")
        return line[1:-1]

    def _wait(self, file: int, event: int) -> None:
        poll = select.poll()
        poll.register(file, event)
        left = self._deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            raise BadProgram(f"{self._file} took longer than {self._seconds:g} s", remember=False)

    def _ended(self) -> NoReturn:
        code = self._process.wait()
        if -code in (signal.SIGXCPU, signal.SIGKILL):
            raise BadProgram(f"{self._file} used more than 5 s of processor time")
        raise BadProgram(f"{self._file} ended before it was done (exit {code})")


def _start() -> subprocess.Popen[bytes]:
    """The runner as the second user, if there is one, by an interpreter that this user may run."""
    other = os.environ.get("AIR_SECOND_UID")
    who = {} if not other else {"user": int(other), "group": int(other), "extra_groups": []}
    for python in (sys.executable, os.path.realpath(sys.executable), "/usr/bin/python3"):
        try:
            return subprocess.Popen(
                [python, "-I", "-c", RUNNER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                cwd="/",
                env={"PYTHONHASHSEED": "0", "PATH": os.defpath, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
                **who,
            )
        except (PermissionError, FileNotFoundError) as error:
            refused = error
    raise RuntimeError(f"no Python that user {other} may run: {refused}")


def _read_source(path: Path) -> str:
    try:
        source = path.read_bytes()
        text = source.decode("utf-8")
    except OSError as error:
        raise BadProgram(f"{path.name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadProgram(f"{path.name} is no UTF-8 text") from None
    if len(source) > 100_000:
        raise BadProgram(f"{path.name} is larger than 100 kB")
    return text
