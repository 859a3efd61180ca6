"""The program that runs the model's Python code in a box (sandbox), cell by cell, as a notebook does. It
consists of this single file and does not import air.

    python3 -I -c BOOT PROGRAM

PROGRAM is the text of this file. BOOT (in `interpreter.py`) executes it with a copy of the builtins, so that
a cell that replaces a builtin function does not break the program.

The program consists of two processes. The supervisor communicates with air: each line of its standard input
is a request, and it writes one line to standard output as the response. The worker, a child process, runs the
cells. Whatever a cell does to the worker, the supervisor responds. If necessary, the supervisor kills the
worker, responds that the session has ended, and exits.

A request is a JSON object with `number`, `code`, `seconds`, and `most` (the maximum number of bytes per
stream). A response has `number`, `stdout`, `stderr`, `shown` (the value of the last expression), `error` (a
traceback), `kind` (the exception's type), `interrupted`, and `ended` (how the worker ended; empty if it
still runs).
"""

# The Python of an image may be old, and cells break much of it.
# ruff: noqa: SIM105, SIM115, UP031
from __future__ import annotations

import ast
import ctypes
import errno
import json
import linecache
import os
import select
import signal
import sys
import time
import traceback
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

INTERRUPT_SECONDS = 3.0
TICK = 0.05
PIECE = 1 << 16
LEAST_LINE = 1 << 16
PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4
_prctl = ctypes.CDLL(None).prctl


class Stream:
    """Reads the worker's standard output or standard error without blocking. It stores the beginning and
    the end of a long output."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        os.set_blocking(fd, False)
        self.clear(PIECE)

    def clear(self, most: int) -> None:
        """Discards the stored output. From now on, at most `most` bytes of output are stored."""
        self.half = most // 2
        self.head, self.tail, self.cut = bytearray(), bytearray(), 0

    def read(self) -> bool:
        """Reads and stores one chunk of output. Returns whether any data was available."""
        try:
            data = os.read(self.fd, PIECE)
        except OSError:
            return False
        room = self.half - len(self.head)
        self.head += data[:room]
        self.tail += data[room:]
        over = len(self.tail) - self.half
        if over > self.half:
            del self.tail[:over]
            self.cut += over
        return bool(data)

    def drain(self) -> None:
        """Reads the available data, but no more than a pipe can hold, because a thread of the cell may
        write without end."""
        for _ in range(32):
            if not self.read():
                return

    def text(self) -> str:
        """Returns the stored output as text. A note in the middle gives the number of missing bytes."""
        over = max(0, len(self.tail) - self.half)
        cut, tail = self.cut + over, self.tail[over:]
        mark = b"\n[... %d bytes cut ...]\n" % cut if cut else b""
        return (bytes(self.head) + mark + bytes(tail)).decode("utf-8", "replace")


class Supervisor:
    """The main process, which communicates with air. It starts the worker, which is the child process that
    runs the cells, and kills the worker if necessary."""

    def __init__(self) -> None:
        pipes = [os.pipe() for _ in range(4)]
        theirs = [pipes[0][0], *(write for _, write in pipes[1:])]
        ours = [pipes[0][1], *(read for read, _ in pipes[1:])]
        self.pid = os.fork()
        for fd in theirs if self.pid else ours:
            os.close(fd)
        if not self.pid:
            worker(theirs)
        self.asked, self.answers, out, err = ours
        os.set_blocking(self.asked, False)
        os.set_blocking(self.answers, False)
        self.streams = (Stream(out), Stream(err))
        self.status = ""

    def serve(self) -> None:
        """Answers requests (cells to run) from standard input until standard input ends or the worker process
        has ended."""
        for line in sys.stdin.buffer:
            answer = self.run(json.loads(line))
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
            if answer["ended"]:
                return

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """Sends a request to the worker and returns the response. At the time limit the cell is
        interrupted; if it does not stop within `INTERRUPT_SECONDS`, the worker is killed."""
        for stream in self.streams:
            stream.clear(request["most"])
        rest = memoryview(json.dumps(request).encode() + b"\n")
        deadline, interrupted, ended = time.monotonic() + request["seconds"], False, ""
        received, most = b"", LEAST_LINE + 32 * request["most"]
        answer: dict[str, Any] | None = None
        while answer is None and not ended:
            now = time.monotonic()
            if now >= deadline and interrupted:
                ended = "it did not stop at its time limit"
                break
            if now >= deadline:
                interrupted, deadline = True, now + INTERRUPT_SECONDS
                self.signal(signal.SIGINT)
            rest = self.move(rest, min(TICK, max(0.0, deadline - now)))
            received += self.received()
            if len(received) > most:
                ended = "a cell wrote to its channel"
            while b"\n" in received and answer is None and not ended:
                line, _, received = received.partition(b"\n")
                answer = parsed(line, request["number"])
            if answer is None and not ended and not self.alive():
                ended = self.status or "it ended"
        for stream in self.streams:
            stream.drain()
        if ended:
            self.signal(signal.SIGKILL)
        empty = {"shown": "", "error": "", "kind": ""}
        out, err = (stream.text() for stream in self.streams)
        end = {"number": request["number"], "interrupted": interrupted, "ended": ended}
        return dict(empty, **(answer or {}), stdout=out, stderr=err, **end)

    def move(self, rest: memoryview, seconds: float) -> memoryview:
        """Waits up to `seconds` seconds until the worker process has data or can take data; reads its output,
        and sends it `rest`, the part of the request that is not sent yet. Returns the part that is still not
        sent."""
        reads = [self.answers, *(stream.fd for stream in self.streams)]
        ready, writes, _ = select.select(reads, [self.asked] if rest else [], [], seconds)
        for stream in self.streams:
            if stream.fd in ready and not stream.read():
                time.sleep(TICK)  # closed by the worker: `select` does not wait for it
        if writes:
            try:
                rest = rest[os.write(self.asked, rest) :]
            except OSError as error:
                if error.errno != errno.EAGAIN:
                    rest = rest[:0]
        return rest

    def received(self) -> bytes:
        """Returns the available data from the pipe on which the worker sends responses."""
        try:
            return os.read(self.answers, PIECE)
        except OSError:
            return b""

    def alive(self) -> bool:
        """Returns whether the worker still runs. If the worker has ended, stores in `status` how it ended."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return True
        killed = os.WIFSIGNALED(status)
        number = os.WTERMSIG(status) if killed else os.WEXITSTATUS(status)
        self.status = "signal %d ended it" % number if killed else "exit status %d" % number
        return False

    def signal(self, number: int) -> None:
        """Sends a signal to the worker's process group."""
        try:
            os.killpg(self.pid, number)
        except OSError:
            pass  # it has ended


def parsed(line: bytes, number: int) -> dict[str, Any] | None:
    """Parses a line as the worker's response to the request `number`. Returns None if the line is anything
    else."""
    try:
        answer = json.loads(line)
        fields = {name: answer[name] for name in ("shown", "error", "kind")}
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    texts = all(isinstance(value, str) for value in fields.values())
    return fields if texts and answer.get("number") == number else None


def worker(fds: list[int]) -> None:
    """The main function of the worker process: runs cells until the supervisor (the parent process) ends, and
    then exits the process. Never returns."""
    status = 70
    try:
        os.setsid()
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        _prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # so that /proc/self works as everywhere
        Session([keep(fd) for fd in fds]).serve()
        status = 0
    finally:
        os._exit(status)


def keep(fd: int) -> int:
    """Returns a duplicate of the file descriptor `fd` with a number from 200 on, and closes `fd`. The
    duplicate is closed on exec, so that programs which a cell starts do not inherit it."""
    import fcntl

    copy = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 200)
    os.close(fd)
    return copy


class Session:
    """The worker's session: the variables of the cells, and the loop that runs the cells."""

    def __init__(self, fds: list[int]) -> None:
        self.requests, self.answers, self.out, self.err = fds
        self.pid, self.running = os.getpid(), False
        self.null = keep(os.open(os.devnull, os.O_RDONLY))
        self.standard: list[Any] = []
        module = types.ModuleType("__main__")
        sys.modules["__main__"], self.names = module, module.__dict__
        sys.argv = [""]
        sys.path[:0] = ["", *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]

    def serve(self) -> None:
        """Runs the cell of each request that the supervisor sends, and sends the response to the
        supervisor."""
        with open(self.requests, "rb", closefd=False) as requests:
            for line in requests:
                request = json.loads(line)
                self.prepare()
                result = self.run(request["code"], request["number"])
                self.flush()
                if os.getpid() != self.pid:  # a child that a cell forked, and that did not end
                    return
                cut = {name: shortened(text, request["most"]) for name, text in result.items()}
                data = json.dumps(dict(cut, number=request["number"])).encode() + b"\n"
                while data:
                    data = data[os.write(self.answers, data) :]

    def prepare(self) -> None:
        """Restores the standard streams and the handler of SIGINT before a cell, because an earlier cell
        may have changed them."""
        for number, fd in enumerate((self.null, self.out, self.err)):
            os.dup2(fd, number)
        names = ("stdin", "stdout", "stderr")
        if not self.standard or any(stream.closed for stream in self.standard):
            self.standard = [
                open(number, "w" if number else "r", 1, "utf-8", "backslashreplace", closefd=False)
                for number in range(3)
            ]
        for name, stream in zip(names, self.standard):  # noqa: B905 — Python 3.8
            setattr(sys, name, stream)
        signal.signal(signal.SIGINT, self.interrupt)

    def interrupt(self, *_: object) -> None:
        """The handler of SIGINT: raises KeyboardInterrupt in the running cell."""
        if self.running:
            raise KeyboardInterrupt("the cell was interrupted")

    def flush(self) -> None:
        """Flushes the output streams. Errors are ignored, because a cell may have replaced or closed the
        streams."""
        for stream in (sys.stdout, sys.stderr, *self.standard[1:]):
            try:
                stream.flush()
            except BaseException:  # of any kind: a cell can replace the streams
                pass

    def run(self, code: str, number: int) -> dict[str, str]:
        """Runs the cell `code`. Returns a dict of three strings, each empty if there is none: the value of
        its last expression (`shown`), its traceback (`error`), and the type of its exception (`kind`)."""
        shown = error = kind = ""
        name = "Cell In[%d]" % number
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        self.running = True
        try:
            tree = ast.parse(code, name)
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, name, "exec"), self.names)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), name, "eval"), self.names)
                if value is not None:
                    self.names["_"], shown = value, str(repr(value))
        except BaseException as raised:  # SystemExit and KeyboardInterrupt too: the session goes on
            kind = type(raised).__name__
            try:
                error = told(raised)
            except BaseException:  # its own methods, or functions that a cell replaced
                error = kind + " (its traceback could not be shown)"
        finally:
            self.running = False
        return {"shown": shown, "error": error, "kind": kind}


def told(error: BaseException) -> str:
    """Returns the traceback of an exception in a cell as text, as a notebook shows it: only the frames from
    the cell's code on, without the frame of the handler for the signal SIGINT."""
    trace = error.__traceback__
    while trace is not None and not trace.tb_frame.f_code.co_filename.startswith("Cell In["):
        trace = trace.tb_next
    last = trace
    while last is not None and last.tb_next is not None:
        if last.tb_next.tb_frame.f_code is Session.interrupt.__code__:
            last.tb_next = None
        last = last.tb_next
    lines = traceback.format_exception(type(error), error, trace)
    return "".join(lines).rstrip("\n")


def shortened(text: str, most: int) -> str:
    """Returns `text`, shortened to about `most` characters by leaving out its middle if it is longer. Lone
    surrogates are escaped, so that the result can be encoded as UTF-8."""
    text = text.encode("utf-8", "backslashreplace").decode()
    over = len(text) - most
    if over <= 0:
        return text
    mark = "\n[... %d characters cut ...]\n" % over
    return text[: most // 2] + mark + text[len(text) - most + most // 2 :]


if __name__ == "__main__":
    _prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # cells must not write to this process's streams
    Supervisor().serve()
    os._exit(0)
