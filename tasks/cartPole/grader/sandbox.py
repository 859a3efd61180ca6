"""Runs somebody's policy.py in processes of its own, as another user, and asks it over pipes.

The policy is never imported here. A runner gets the source on standard input and forks for every
episode, so that no episode knows of another: the child runs the source, is given observations as JSON
and answers each with one byte, its action. What a policy prints goes nowhere; leaving early, a wrong
answer, starting processes or spending too long is its fault and raises `BadPolicy`.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

SECONDS = 20.0
"""Wall time for all episodes together; the processor time of one has a tighter limit of its own."""

RUNNER = r"""
import json, operator, os, random, resource, signal, sys
import numpy  # once, here: a fork has it at no cost

def limit(kind, most):
    resource.setrlimit(getattr(resource, "RLIMIT_" + kind), (most, most))

for kind, most in (("CPU", 5), ("AS", 1 << 30), ("FSIZE", 1 << 20), ("CORE", 0)):
    limit(kind, most)
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

def episode(code, seed):
    limit("NPROC", 0)
    random.seed(seed)
    numpy.random.seed(seed)
    space = {"__name__": "policy"}
    exec(code, space)
    act = space.get("act")
    if not callable(act):
        raise TypeError("it defines no function act(observation)")
    while size := int(receive(8)):
        action = act(json.loads(receive(size)))
        try:
            number = operator.index(action)
        except TypeError:
            number = -1
        if not 0 <= number < actions:
            raise ValueError("act returned %.40r, expected 0 to %d" % (action, actions - 1))
        os.write(answers, b"%d" % number)

def guarded(*work):
    try:
        work[0](*work[1:])
    except BaseException as error:
        line = getattr(error.__traceback__, "tb_next", None)
        while line is not None and line.tb_next is not None:
            line = line.tb_next
        where = ""
        if line is not None and line.tb_frame.f_code.co_filename == "policy.py":
            where = " (line %d)" % line.tb_lineno
        text = " ".join(("%s: %s%s" % (type(error).__name__, error, where)).split())
        os.write(answers, b"E" + text.encode("utf-8", "replace")[:400] + b"\n")
        os._exit(1)

def serve():
    global actions
    size, seed, actions = int(receive(8)), int(receive(8)), int(receive(8))
    code = compile(receive(size), "policy.py", "exec")
    os.write(answers, b"R")
    while True:
        receive(1)
        child = os.fork()
        if not child:
            guarded(episode, code, seed)
            os._exit(0)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.write(answers, b"X" if -ended in (signal.SIGXCPU, signal.SIGKILL) else b".")
        seed += 1

guarded(serve)
"""


class BadPolicy(Exception):
    """The policy crashed, left, answered wrongly or took too long; shown to the agent."""

    def __init__(self, message: str, *, remember: bool = True) -> None:
        super().__init__(message)
        self.remember = remember
        """Whether it would fail so again; a wall clock that ran out depends on the machine."""


class Policy:
    """One live runner. Use through `with`, and within it `with policy.episode() as act`."""

    def __init__(self, source: bytes, *, actions: int, seed: int) -> None:
        """
        Args:
            source: of policy.py.
            actions: how many there are, 2 to 10; they are numbered from 0.
            seed: of Python's and numpy's global random numbers in the first episode; one more in each next.
        """
        self._deadline = time.monotonic() + SECONDS
        self._actions = {b"%d" % number for number in range(actions)}
        self._process = _start()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._poll = select.poll()
        self._poll.register(self._from, select.POLLIN)
        self._hello = b"%08d%08d%08d" % (len(source), seed % 10_000_000, actions) + source

    def __enter__(self) -> "Policy":
        try:
            self._send(self._hello)
            self._answer({b"R"})
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

    @contextlib.contextmanager
    def episode(self) -> Iterator[Callable[[object], int]]:
        """A fresh policy, as a function from what JSON can say to the number of an action."""
        self._send(b"N")
        yield self._act
        self._send(b"%08d" % 0)
        self._answer({b"."})

    def _act(self, observation: object) -> int:
        text = json.dumps(observation).encode()
        self._send(b"%08d" % len(text) + text)
        return int(self._answer(self._actions))

    def _send(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self._to, data) :]
        except BrokenPipeError:
            raise BadPolicy("policy.py ended before the episodes did") from None

    def _answer(self, expected: set[bytes]) -> bytes:
        left = self._deadline - time.monotonic()
        if left <= 0 or not self._poll.poll(left * 1000):
            raise BadPolicy(f"policy.py took longer than {SECONDS:g} s", remember=False)
        answer = os.read(self._from, 410)
        if answer in expected:
            return answer
        if answer[:1] == b"E":
            text = answer[1:].partition(b"\n")[0].decode("utf-8", "replace")
            raise BadPolicy(f"policy.py failed: {text}")
        if answer == b"X":
            raise BadPolicy("policy.py used more than 5 s of processor time in one episode")
        if answer in (b"", b"."):
            raise BadPolicy("policy.py ended before the episodes did")
        raise BadPolicy("policy.py answered out of turn")


def _start() -> "subprocess.Popen[bytes]":
    """The runner as the second user, if there is one, by an interpreter that this user may run."""
    other = os.environ.get("AIR_SECOND_UID")
    who = {} if not other else {"user": int(other), "group": int(other), "extra_groups": []}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    for python in (sys.executable, os.path.realpath(sys.executable), "/usr/bin/python3"):
        try:
            return subprocess.Popen(
                [python, "-I", "-c", RUNNER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                cwd="/",
                env={"PYTHONHASHSEED": "0", "PATH": os.defpath, **threads},
                start_new_session=True,
                **who,
            )
        except (PermissionError, FileNotFoundError) as error:
            refused = error
    raise RuntimeError(f"no Python that user {other} may run: {refused}")


def read_source(path: Path) -> bytes:
    """The policy's source.

    Raises:
        BadPolicy: absent or larger than 1 MB.
    """
    try:
        source = path.read_bytes()
    except OSError as error:
        raise BadPolicy(f"policy.py cannot be read: {error.strerror}") from None
    if len(source) > 1_000_000:
        raise BadPolicy("policy.py is larger than 1 MB")
    return source
