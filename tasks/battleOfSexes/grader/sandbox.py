"""Runs somebody's strategy.py in a process of its own, as another user, and talks to it over pipes.

The strategy is never imported here. Its process gets the source on standard input, is told of a new
match (`N`) and of the other's last move (`0` or `1`), and answers each with its move. What it prints goes
nowhere; leaving early, a wrong answer or spending too long is its fault and raises `BadStrategy`.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

SECONDS = 20.0
"""Wall time for all matches together; the processor time has a tighter limit of its own."""

RUNNER = r"""
import os, random, resource, sys
for kind, most in (("CPU", 5), ("AS", 1 << 30), ("FSIZE", 1 << 20), ("CORE", 0)):
    resource.setrlimit(getattr(resource, "RLIMIT_" + kind), (most, most))
source, orders, answers = os.dup(0), os.dup(0), os.dup(1)
null = os.open(os.devnull, os.O_RDWR)
for fd in (0, 1, 2):
    os.dup2(null, fd)

def receive(count):
    data = b""
    while len(data) < count:
        part = os.read(orders, count - len(data))
        if not part:
            os._exit(0)
        data += part
    return data

def serve():
    size, seed = int(receive(10)), int(receive(10))
    code = compile(receive(size), "strategy.py", "exec")
    match = 0
    os.write(answers, b"R")
    while True:
        order = receive(1)
        if order == b"N":
            random.seed(seed + match)
            match, mine, theirs = match + 1, [], []
            space = {"__name__": "strategy"}
            exec(code, space)
            move = space.get("move")
            if not callable(move):
                raise TypeError("it defines no function move(mine, theirs)")
        else:
            theirs.append(order == b"1" and 1 or 0)
        played = move(mine[:], theirs[:])
        if played not in (0, 1):
            raise ValueError("move returned %.40r, expected 0 or 1" % (played,))
        mine.append(int(played))
        os.write(answers, b"1" if played else b"0")

try:
    serve()
except BaseException as error:
    line = getattr(error.__traceback__, "tb_next", None)
    while line is not None and line.tb_next is not None:
        line = line.tb_next
    where = ""
    if line is not None and line.tb_frame.f_code.co_filename == "strategy.py":
        where = " (line %d)" % line.tb_lineno
    text = "%s: %s%s" % (type(error).__name__, error, where)
    os.write(answers, b"E" + text.encode("utf-8", "replace")[:400])
    os._exit(1)
"""


class BadStrategy(Exception):
    """The strategy crashed, left, answered wrongly or took too long; shown to the agent."""

    def __init__(self, message: str, *, remember: bool = True) -> None:
        super().__init__(message)
        self.remember = remember
        """Whether it would fail so again; a wall clock that ran out depends on the machine."""


class Strategy:
    """One live strategy process. Use through `with`."""

    def __init__(self, source: bytes, seed: int) -> None:
        self._deadline = time.monotonic() + SECONDS
        self._process = _start()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._poll = select.poll()
        self._poll.register(self._from, select.POLLIN)
        self._hello = b"%010d%010d" % (len(source), seed) + source

    def __enter__(self) -> "Strategy":
        try:
            self._send(self._hello)
            if self._answer() != b"R":
                raise BadStrategy("strategy.py answered out of turn")
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
        self._process.stdin.close()
        self._process.stdout.close()

    def ask(self, order: bytes) -> int:
        """Sends `N`, `0` or `1`; returns the move, 0 or 1."""
        self._send(order)
        answer = self._answer()
        if answer == b"R":
            raise BadStrategy("strategy.py answered out of turn")
        return int(answer)

    def _send(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self._to, data) :]
        except BrokenPipeError:
            self._ended()

    def _answer(self) -> bytes:
        left = self._deadline - time.monotonic()
        if left <= 0 or not self._poll.poll(left * 1000):
            raise BadStrategy(f"strategy.py took longer than {SECONDS:g} s", remember=False)
        answer = os.read(self._from, 401)
        if not answer:
            self._ended()
        if answer[:1] == b"E":
            text = answer[1:].decode("utf-8", "replace")
            raise BadStrategy("strategy.py failed: " + " ".join(text.split()))
        if answer not in (b"0", b"1", b"R"):
            raise BadStrategy("strategy.py answered out of turn")
        return answer

    def _ended(self) -> None:
        code = self._process.wait()
        if -code in (signal.SIGXCPU, signal.SIGKILL):
            raise BadStrategy("strategy.py used more than 5 s of processor time")
        raise BadStrategy(f"strategy.py ended before the matches did (exit {code})")


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


def read_source(path: Path) -> bytes:
    """The strategy's source.

    Raises:
        BadStrategy: absent or larger than 100 kB.
    """
    try:
        source = path.read_bytes()
    except OSError as error:
        raise BadStrategy(f"strategy.py cannot be read: {error.strerror}") from None
    if len(source) > 100_000:
        raise BadStrategy("strategy.py is larger than 100 kB")
    return source
