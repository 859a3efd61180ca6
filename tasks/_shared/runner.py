"""Runs agent code as the second user, in processes of its own, and asks it over sockets.

Agent code is never imported by a grader. `player.py` runs it, is asked, and answers; what an answer means,
and whether it is allowed, is for the task's `grade.py` to check. What the code prints goes nowhere.
Whatever it does (crash, leave, answer out of turn, answer nothing, fill memory, take too long) raises
`BadArtefact` and never holds the grader up. A load leaves nothing to the next in a process, file, queue,
semaphore, shared memory, key or socket, and reads no counter that another load can advance, such as processor
time. This needs a second user. What is left (time, speed, which load it is) is in docs/integrity.md. If
`processes` or `file_mb` is not 0, a load also finds out how many processes or files others have made.
"""

import builtins
import contextlib
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, NoReturn

from grading import HERE, BadArtefact, read_bytes

PLAYER = Path(__file__).resolve().parent / "player.py"
HEAD = struct.Struct(">cI")
MOST_REPORT, MOST_TEXT = 10_000, 400
REPORT_SECONDS = 5.0
"""How long to wait for the reason why a process is gone; without it the text says less."""
ERRORS = {
    name
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, BaseException)
}
USUAL_ERRORS = {
    *("AssertionError", "AttributeError", "ImportError", "IndexError", "KeyError", "MemoryError"),
    *("NameError", "OSError", "RecursionError", "TypeError", "ValueError", "ZeroDivisionError"),
}
"""Kinds that are named even if the code was shown hidden data: few, so that they tell little of it."""
SHARED_FOLDERS = ("/tmp", "/dev/shm", "/dev/mqueue", "/var/tmp")
"""Folders in which every user of a box may write."""
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Limits(NamedTuple):
    """What agent code may use. None means no limit but that of the grader's box."""

    seconds: float = 50.0
    """Wall time for everything, from the start on; below `grade_seconds` (60 by default). Ten times the
    processor time, so that honest code does not reach it on a busy machine."""
    cpu_seconds: int | None = 5
    """Processor time."""
    cpu_per_load: bool = False
    """Whether each load may use `cpu_seconds`; otherwise all loads together."""
    memory_mb: int | None = 1024
    """Address space of a process in MiB."""
    file_mb: int | None = 0
    """Size of a file in MiB; 0: it writes none. Files that it writes are removed after the load."""
    open_files: int | None = 64
    """Open files at once."""
    processes: int | None = 0
    """Further processes and threads; held for the second user only, as root is exempt."""
    source_bytes: int | None = 100_000
    """Size of the source file."""
    answer_bytes: int = 1_000_000
    """Size of one answer."""

    def for_player(self) -> dict[str, Any]:
        """The part that `player.py` puts on itself."""
        mib = 1 << 20
        return {
            "cpu_seconds": self.cpu_seconds,
            "cpu_per_load": self.cpu_per_load,
            "processes": self.processes,
            "resources": {
                "CPU": self.cpu_seconds,
                "AS": self.memory_mb and self.memory_mb * mib,
                "FSIZE": self.file_mb and self.file_mb * mib,
                "NOFILE": self.open_files,
                "MSGQUEUE": 0,
                "CORE": 0,
            },
        }


USUAL = Limits()


class Runner:
    """Agent code, at work in processes of its own.

    Use it through `with`. `load` runs the file afresh; `call` and `ask` then put questions to that load.
    Every method raises `BadArtefact` for whatever the code does wrong, within the one time limit that
    they share. Once the code has been asked anything, it might hide in an error what it was shown: from
    then on error texts are fixed, and name nothing but one of a few kinds of errors.
    """

    def __init__(
        self,
        path: Path,
        *functions: str,
        seed: int,
        limits: Limits = USUAL,
        protocol: Callable[..., Callable[[bytes], bytes]] | None = None,
        modules: tuple[str, ...] = (),
        imports: Path | None = None,
    ) -> None:
        """
        Args:
            path: the file of agent code.
            functions: names that it must define.
            seed: of Python's random numbers in the first load; one more in each next. The code can find it
                out: nothing hidden may follow from it.
            limits: what the code may use.
            protocol: takes the functions and returns what turns a request into an answer. Its source is
                sent to the player, so it must use nothing outside of itself. Without it, `call` works.
            modules: imported once, before any load. NumPy's random numbers are seeded if it is among them.
            imports: a folder of further modules, which only a load imports, from the source or the
                protocol. The second user must be able to read it.
        """
        self._file, self._limits = path.name, limits
        source = read_bytes(path, limits.source_bytes)
        self._lines = source.count(b"\n") + 1
        other = second_user()
        settings = {
            "file": path.name,
            "functions": functions,
            "modules": modules,
            "imports": [str(imports)] if imports else [],
            "limits": limits.for_player(),
            "protocol": _source_of(protocol) if protocol else ("", ""),
            "user": other,
            "alone": other is not None and _own_root() and limits.processes != 0,
        }
        self._hello = _packed(b"S", json.dumps(settings).encode()) + _packed(b"S", source)
        self._json = json.JSONDecoder(parse_constant=self._refuse)
        self._shown = False
        self._seed, self._used = seed, 0.0
        """The seed of the next load, and the processor time of those that share a limit. They are known here
        only: a load could find them in the memory of the player."""
        self._child = 0
        """Process id of the current load; 0 if there is none."""

    def __enter__(self) -> "Runner":
        self._deadline = time.monotonic() + self._limits.seconds
        self._folder = tempfile.mkdtemp()
        self._control, theirs = socket.socketpair()
        self._data = self._control
        _shut_out(self._limits)
        with theirs:
            Path(self._folder).chmod(0o711)  # a load passes through to a folder of its own
            self._process = _start(theirs, self._folder, self._limits)
        self._control.setblocking(False)
        try:
            self._write(self._control, self._hello)
            if refused := self._report(b"R"):
                raise RuntimeError(f"agent code cannot be shut in: {refused.decode()}")
        except _Gone:
            self.close()
            raise RuntimeError("the player ended before it had run any agent code") from None
        except BaseException:  # cancellation too: no process is left; raised again
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kills what runs, then waits for it, and removes the temporary folder."""
        if self._child:
            self._kill()
            self._deadline = time.monotonic() + REPORT_SECONDS
            with contextlib.suppress(_Gone, BadArtefact):
                self._ended()  # the player has removed what the load left
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._data.close()
        self._control.close()
        with contextlib.suppress(RecursionError):  # too deep: it goes with the box
            shutil.rmtree(self._folder, ignore_errors=True)

    def load(self) -> None:
        """Runs the file afresh: in a new process, with new random numbers, knowing of no earlier load."""
        with self._explaining():
            if self._child:
                self._kill()
                self._ended()
            self._data, theirs = socket.socketpair()
            self._data.setblocking(False)
            with theirs, contextlib.suppress(ConnectionError):  # then the player has ended
                socket.send_fds(self._control, [b"L"], [theirs.fileno()])
            self._child = int(self._report(b"P"))
            self._write(self._control, _packed(b"C", json.dumps(self._shared_time()).encode()))
            self._write(self._data, _packed(b"S", b"%d" % self._seed))
            self._seed += 1
            self._answer(b"R")

    def _shared_time(self) -> float | None:
        """The processor time that is left of what all loads share; None if each has its own."""
        most = self._limits.cpu_seconds
        return None if most is None or self._limits.cpu_per_load else most - self._used

    def call(self, *arguments: Any) -> Any:
        """Calls the function with copies of the arguments, and returns a copy of what it returns: what
        JSON can hold, without NaN and infinity."""
        answer = self.ask(json.dumps(arguments).encode())
        try:
            return self._json.decode(answer.decode())
        except (ValueError, RecursionError):
            raise BadArtefact(f"{self._file} answered with something that is no JSON") from None

    def ask(self, request: bytes) -> bytes:
        """Sends a request and returns the answer, as the protocol defines both."""
        self._shown = True
        with self._explaining():
            self._write(self._data, _packed(b"Q", request))
            return self._answer(b"A")

    def _refuse(self, constant: str) -> NoReturn:
        raise BadArtefact(f"{self._file} returned {constant}, which is no number")

    def _answer(self, expected: bytes) -> bytes:
        """The data of the load's next frame, which must be of the expected kind."""
        kinds = (expected, b"E", b"J")
        kind, data = self._frame(self._data, kinds, self._limits.answer_bytes)
        if kind == b"J":
            raise BadArtefact(f"{self._file} returned something that JSON cannot hold")
        if kind == b"E":
            raise BadArtefact(f"{self._file} failed: {self._described_error(data)}")
        return data

    def _report(self, expected: bytes) -> bytes:
        """The data of the player's next frame; agent code does not have that socket."""
        return self._frame(self._control, (expected,), MOST_REPORT)[1]

    def _write(self, link: socket.socket, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[link.send(rest) :]
            except BlockingIOError:
                ready = self._wait(link, select.POLLIN | select.POLLOUT)
                if ready & select.POLLIN and _waiting(link):  # before it has read the whole request
                    raise BadArtefact(f"{self._file} answered out of turn") from None
                if not ready & select.POLLOUT:
                    raise _Gone from None
            except ConnectionError:
                raise _Gone from None

    def _frame(
        self, link: socket.socket, kinds: tuple[bytes, ...], most: int
    ) -> tuple[bytes, bytes]:
        """Kind and data of the next frame. A load says no more than what it was asked."""
        frame, size, kind = bytearray(), HEAD.size, b""
        while len(frame) < size:
            part, room = b"", size - len(frame) if link is self._control else 1 << 16
            if self._wait(link, select.POLLIN):
                with contextlib.suppress(ConnectionError):
                    part = link.recv(room)
            if not part:
                raise _Gone
            frame += part
            if len(frame) >= HEAD.size:
                kind, length = HEAD.unpack_from(frame)
                size = HEAD.size + length
                if kind not in kinds or len(frame) > size:
                    raise BadArtefact(f"{self._file} answered out of turn")
                if length > most:
                    raise BadArtefact(f"{self._file} answered with more than {most} bytes")
        return kind, bytes(frame[HEAD.size :])

    def _wait(self, link: socket.socket, events: int) -> int:
        """What the socket is ready for; 0 if it is not, but the player reports that the load has ended."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(link, events)
        left = self._deadline - time.monotonic()
        ready = dict(poll.poll(left * 1000)) if left > 0 else {}
        if not ready:
            raise BadArtefact(
                f"{self._file} took longer than {self._limits.seconds:g} s", remember=False
            )
        return ready.get(link.fileno(), 0)

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        """Turns the end of a process, or of its socket, into the reason for it."""
        try:
            yield
        except _Gone:
            code, used = self._last_report()
            most = self._limits.cpu_seconds
            # SIGKILL comes a second after SIGXCPU, for code that ignores this; or for want of memory.
            if code == -signal.SIGXCPU or (code == -signal.SIGKILL and most and used > most / 2):
                text = f"{self._file} used more than {most} s of processor time"
            else:
                text = f"{self._file} ended before it was done"
            raise BadArtefact(text) from None

    def _last_report(self) -> tuple[int, float]:
        """Exit status and processor time of a load that is gone; zeros if the player does not say."""
        self._deadline = min(self._deadline, time.monotonic() + REPORT_SECONDS)
        try:
            return self._ended()
        except (_Gone, BadArtefact):
            return 0, 0.0

    def _ended(self) -> tuple[int, float]:
        """Exit status and processor time of the load that has ended."""
        code, seconds, clear = json.loads(self._report(b"X"))
        self._child = 0
        if not self._limits.cpu_per_load:
            seconds = self._used = self._used + seconds
        if not clear:
            raise BadArtefact(f"{self._file} left files that cannot be removed")
        return code, seconds

    def _described_error(self, data: bytes) -> str:
        """What agent code says of its own failure; it may say anything, so little of it is passed on."""
        try:
            error = json.loads(data)
            kind, line, text = str(error["kind"]), error["line"], str(error["text"])
        except (ValueError, TypeError, LookupError, RecursionError):
            kind, line, text = "", None, ""
        if self._shown:
            return kind if kind in USUAL_ERRORS else "Exception"
        shown = kind if kind in ERRORS else "Exception"
        shown += ": " + " ".join(text.split())[:MOST_TEXT]
        return f"{shown} (line {line})" if line in range(1, self._lines + 1) else shown

    def _kill(self) -> None:
        """Kills the current load, if there is one. It cannot have escaped: this is its process id."""
        self._data.close()
        if self._child:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child, signal.SIGKILL)
            self._child = 0


class _Gone(Exception):
    """The other side of a socket is closed, or the player reports that the load has ended."""


def _source_of(function: Callable[..., Any]) -> tuple[str, str]:
    """A function's name and source."""
    import inspect  # takes long to import, and few tasks need it

    return function.__name__, inspect.getsource(function)


def _packed(kind: bytes, data: bytes) -> bytes:
    return HEAD.pack(kind, len(data)) + data


def _waiting(link: socket.socket) -> bool:
    """Whether there is something to read, not only the end."""
    with contextlib.suppress(OSError):
        return bool(link.recv(1, socket.MSG_PEEK))
    return False


def second_user() -> int | None:
    """The user as whom agent code runs; None in a box that has no second user."""
    given = os.environ.get("AIR_SECOND_UID")
    return int(given) if given else None


def _own_root() -> bool:
    """Whether the box has a root of its own; otherwise, in a plain process box, folders are the host's."""
    return HERE.parent == Path("/")


def _shut_out(limits: Limits) -> None:
    """Closes to the second user what tells of others or is shared by all, and lets the kernel kill agent code
    before this process."""
    if second_user() is None or not _own_root():
        return
    for name in SHARED_FOLDERS:
        with contextlib.suppress(FileNotFoundError):  # not every box has each
            if os.access(name, os.W_OK):
                Path(name).chmod(0o711)
    Path("/proc/self/oom_score_adj").write_text("500")
    if limits.processes == 0:  # threads of PyTorch look there for the machine's cores
        with contextlib.suppress(OSError):  # in a process box, /proc belongs to nobody
            Path("/proc").chmod(0o700)
    for link in Path("/dev").iterdir():
        if link.is_symlink():
            link.readlink()  # or the first load that follows it leaves the time


def _start(control: socket.socket, folder: str, limits: Limits) -> "subprocess.Popen[bytes]":
    """The player, which has no more of this process than it needs."""
    env = {"PYTHONHASHSEED": "0", "PATH": os.defpath}
    if limits.processes is not None:
        env |= dict.fromkeys(THREADS, "1")
    return subprocess.Popen(
        [
            interpreter(),
            "-s",
            "-c",
            PLAYER.read_text(encoding="utf-8"),
        ],  # -I would ignore PYTHONHASHSEED
        stdin=control.fileno(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env=env,
        start_new_session=True,
    )


def interpreter() -> str:
    """An interpreter whose library every user may read: ours, or in a plain process box of root's the
    system's."""
    needed = [os.path.realpath(sys.executable), os.__file__, sys.executable]
    folders = {parent for name in needed for parent in Path(name).parents}
    if second_user() is None or all(folder.stat().st_mode & 0o001 for folder in folders):
        return sys.executable
    return "/usr/bin/python3"
