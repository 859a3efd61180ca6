"""Runs somebody's model.py in a process of its own, as another user, and asks it over pipes.

The model is never imported here. Its process gets source and weights on standard input; then `N` begins a
passage, `P` asks for 256 probabilities, and any byte after `B` is one that came. What it prints goes nowhere;
leaving early, a wrong answer or taking too long is its fault and raises `BadModel`.
"""

import array
import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

SECONDS = 840.0
"""Wall time for all passages together, below the limit of the grader."""
ANSWER = 256 * 8

RUNNER = r"""
import array, os, random, resource, sys
for kind, most in (("FSIZE", 1 << 20), ("CORE", 0)):
    resource.setrlimit(getattr(resource, "RLIMIT_" + kind), (most, most))
orders, answers = os.dup(0), os.dup(1)
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

def say(data):
    while data:
        data = data[os.write(answers, data):]

def serve():
    size, more, seed = int(receive(10)), int(receive(10)), int(receive(10))
    code, weights = compile(receive(size), "model.py", "exec"), receive(more)
    random.seed(seed)
    space = {"__name__": "model"}
    exec(code, space)
    if not callable(space.get("load")):
        raise TypeError("it defines no function load(weights)")
    predict, context = space["load"](weights), bytearray()
    while True:
        order = receive(1)
        if order == b"N":
            context.clear()
        elif order == b"B":
            context += receive(1)
        else:
            chances = array.array("d", [float(p) for p in predict(bytes(context))])
            if len(chances) != 256:
                raise ValueError("predict gave %d numbers, expected 256" % len(chances))
            say(b"A" + chances.tobytes())

try:
    serve()
except BaseException as error:
    text = " ".join(("%s: %s" % (type(error).__name__, error)).split())
    say(b"E" + text.encode("utf-8", "replace")[:400] + b"\n")
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

    def __init__(self, source: bytes, weights: bytes, *, seed: int) -> None:
        self._deadline = time.monotonic() + SECONDS
        self._process = _start()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._poll = select.poll()
        self._poll.register(self._from, select.POLLIN)
        head = b"%010d%010d%010d" % (len(source), len(weights), seed % 1_000_000)
        self._hello = head + source + weights

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

    def begin(self) -> None:
        """A new passage, of which nothing is known."""
        self._send(b"N")

    def tell(self, byte: int) -> None:
        """The byte that came."""
        self._send(b"B" + bytes([byte]))

    def predict(self) -> list[float]:
        """256 numbers, whatever they are."""
        self._send(b"P")
        answer = self._read(1)
        if answer == b"E":
            text = b""
            while not text.endswith(b"\n"):
                text += self._read(1)
            raise BadModel("model.py failed: " + text.decode("utf-8", "replace").strip())
        if answer != b"A":
            raise BadModel("model.py answered out of turn")
        return array.array("d", self._read(ANSWER)).tolist()

    def _send(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self._to, data) :]
        except BrokenPipeError:
            self._ended()

    def _ended(self) -> None:
        """Passes on what the process said before it left."""
        if self._poll.poll(0) and os.read(self._from, 1) == b"E":
            text = os.read(self._from, 410).decode("utf-8", "replace")
            raise BadModel("model.py failed: " + text.strip()) from None
        raise BadModel("model.py ended before the passages did") from None

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            left = self._deadline - time.monotonic()
            if left <= 0 or not self._poll.poll(left * 1000):
                raise BadModel(f"model.py took longer than {SECONDS:g} s", remember=False)
            part = os.read(self._from, count - len(data))
            if not part:
                raise BadModel("model.py ended before the passages did")
            data += part
        return data


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
                env={"PYTHONHASHSEED": "0", "PATH": os.defpath},
                start_new_session=True,
                **who,
            )
        except (PermissionError, FileNotFoundError) as error:
            refused = error
    raise RuntimeError(f"no Python that user {other} may run: {refused}")


def read_file(path: Path) -> bytes:
    """The bytes of one file of the artefact.

    Raises:
        BadModel: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadModel(f"{path.name} cannot be read: {error.strerror}") from None
