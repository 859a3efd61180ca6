"""Runs somebody's model.py in a process of its own, as another user, and talks to it over pipes.

The model is never imported here. Its process gets the source on standard input; then, in turn, it answers
with a weight for every character of the alphabet and is told the character that came. It cannot be
told sooner: the text lies on this side of the pipe. What it prints goes nowhere; leaving early, a wrong
answer or spending too long is its fault and raises `BadModel`.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from array import array
from pathlib import Path
from types import TracebackType

SECONDS = 40.0
"""Wall time for the whole text; the processor time has a tighter limit of its own."""
MAX_SOURCE = 4_000_000
SYMBOLS = 96
_FRAME = 1 + 8 * SYMBOLS

RUNNER = r"""
import os, random, resource, sys
from array import array
for kind, most in (("CPU", 10), ("AS", 1 << 30), ("FSIZE", 1 << 20), ("CORE", 0)):
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
    code = compile(receive(size), "model.py", "exec")
    random.seed(seed)
    space = {"__name__": "model"}
    exec(code, space)
    predict = space.get("predict")
    if not callable(predict):
        raise TypeError("it defines no function predict(text)")
    text = ""
    while True:
        weights = array("d", predict(text))
        if len(weights) != 96:
            raise ValueError("predict returned %d weights, expected 96" % len(weights))
        os.write(answers, b"P" + weights.tobytes())
        text += receive(1).decode("ascii")

try:
    serve()
except BaseException as error:
    line = getattr(error.__traceback__, "tb_next", None)
    while line is not None and line.tb_next is not None:
        line = line.tb_next
    where = ""
    if line is not None and line.tb_frame.f_code.co_filename == "model.py":
        where = " (line %d)" % line.tb_lineno
    text = "%s: %s%s" % (type(error).__name__, error, where)
    os.write(answers, b"E" + text.encode("utf-8", "replace")[:400])
    os._exit(1)
"""


class BadModel(Exception):
    """The model crashed, left, answered wrongly or took too long; shown to the agent."""

    def __init__(self, message: str, *, remember: bool = True) -> None:
        super().__init__(message)
        self.remember = remember
        """Whether it would fail so again; a wall clock that ran out depends on the machine."""


class Model:
    """One live model process. Use through `with`."""

    def __init__(self, source: bytes, seed: int) -> None:
        self._deadline = time.monotonic() + SECONDS
        self._process = _start()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._poll = select.poll()
        self._poll.register(self._from, select.POLLIN)
        self._hello = b"%010d%010d" % (len(source), seed) + source

    def __enter__(self) -> "Model":
        try:
            self._send(self._hello)
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

    def weights(self) -> "array[float]":
        """Its weights for the next character, as it sent them: 96 numbers of any kind."""
        answer = b""
        while len(answer) < _FRAME:
            answer += self._receive(_FRAME - len(answer))
            if answer[:1] == b"E":
                text = answer[1:401].decode("utf-8", "replace")
                raise BadModel("model.py failed: " + " ".join(text.split()))
            if answer[:1] != b"P":
                raise BadModel("model.py answered out of turn")
        return array("d", answer[1:])

    def tell(self, character: str) -> None:
        """Says which character came."""
        self._send(character.encode("ascii"))

    def _send(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self._to, data) :]
        except BrokenPipeError:
            self._ended()

    def _receive(self, count: int) -> bytes:
        left = self._deadline - time.monotonic()
        if left <= 0 or not self._poll.poll(left * 1000):
            raise BadModel(f"model.py took longer than {SECONDS:g} s", remember=False)
        data = os.read(self._from, count)
        if not data:
            self._ended()
        return data

    def _ended(self) -> None:
        code = self._process.wait()
        if -code in (signal.SIGXCPU, signal.SIGKILL):
            raise BadModel("model.py used more than 10 s of processor time")
        raise BadModel(f"model.py ended before the text did (exit {code})")


def _start() -> "subprocess.Popen[bytes]":
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
    """The model's source.

    Raises:
        BadModel: absent or larger than 4 MB.
    """
    try:
        source = path.read_bytes()
    except OSError as error:
        raise BadModel(f"model.py cannot be read: {error.strerror}") from None
    if len(source) > MAX_SOURCE:
        raise BadModel("model.py is larger than 4 MB")
    return source
