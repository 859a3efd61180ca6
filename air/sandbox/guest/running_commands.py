"""Commands that run in a box: their output, their state, and the search for their descendant processes. Part
of the guest, air's program in the box.

Standard library only, Python >= 3.8, no import of `air`.
"""

# ruff: noqa: PTH123, PTH208
# Neither pathlib nor contextlib is worth its import at every start of a box.
from __future__ import annotations

import ctypes
import errno
import os
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    class Rights(Protocol):
        """The interface by which the guest (this program), in an open box, gets the right to read the
        environment of a process."""

        def of_process(self, pid: int) -> None: ...


PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36
MARK = "AIR_COMMAND"
DRAIN_SECONDS, DRAIN_MOST = 0.05, 1.0
STOP_SECONDS = 10.0
DYING_SECONDS = 2.0
QUIET = 4
"""To kill a command, the guest (this program) kills and lists the command's processes repeatedly, because
they may fork meanwhile. The command counts as dead after this number of listings in a row that show no new
process.

All processes of a box without a pid namespace count as dead after this number of empty listings in a row."""
ENVIRONMENT_BYTES, ENVIRONMENT_PIECE = 6 << 20, 1 << 16
"""The kernel starts no program with more than 6 MiB of environment and arguments."""
# Positions among the fields of `_stats`: the number of threads, and the time at which the process started.
THREADS, STARTED = 17, 19
SIGNALS = [
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE),
    *(signal.SIGALRM, signal.SIGTERM, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
    *(signal.SIGXCPU, signal.SIGXFSZ),
]
_LIBC = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int) -> None:
    """Sets one attribute of this process by the system call `prctl`; raises OSError if the kernel refuses."""
    if _LIBC.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def reason(error: BaseException) -> str:
    """Returns the message of an exception: the system's error text for an OSError, else the exception's own
    text."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or repr(error)


class Output:
    """Collects one output stream of a command. Keeps at most `cap` bytes: half of them from the beginning of
    the output, half from its end."""

    def __init__(self, cap: int) -> None:
        self.head_cap = cap - cap // 2
        self.tail_cap = cap // 2
        self.head = bytearray()
        self.tail = bytearray()
        self.cut = 0

    def add(self, data: bytes) -> None:
        """Adds `data` to the output. Drops bytes from the middle if there are too many, so that at most about
        twice `cap` bytes are in memory."""
        room = self.head_cap - len(self.head)
        self.head += data[:room]
        self.tail += data[room:]
        if len(self.tail) > 2 * self.tail_cap:
            self._trim()

    def _trim(self) -> None:
        over = max(0, len(self.tail) - self.tail_cap)
        self.cut += over
        del self.tail[:over]

    def bytes(self) -> bytes:
        """Returns the kept output: the beginning and the end of the stream. If bytes between them were
        dropped, a line at their position says how many."""
        self._trim()
        mark = b"\n[... %d bytes cut ...]\n" % self.cut if self.cut else b""
        return bytes(self.head) + mark + bytes(self.tail)


class Child:
    """A command that has just been started: the pid of its first process, and the ends of its pipes or
    terminal that the guest (air's program in the box) holds."""

    def __init__(self, pid: int, outputs: tuple[int, ...], source: int | None) -> None:
        self.pid = pid
        self.outputs = outputs
        """The file descriptors from which the guest (this program) reads the command's standard output and
        standard error, or the one file descriptor of its terminal."""
        self.input = source
        """The file descriptor to which the guest (this program) writes the command's input; None if it does
        not write any."""


class Command:
    """A command that runs in the box, with the pid of its first process, its output pipes, its deadline and
    its state."""

    def __init__(self, ident: int, child: Child, header: dict[str, Any]) -> None:
        self.ident = ident
        self.pid = child.pid
        self.pipes = child.outputs
        self.status: int | None = None
        timeout = header["timeout"]
        self.deadline: float = float("inf") if timeout is None else header["now"] + timeout
        self.started: float = header["now"]
        self.paused: float | None = None
        self.outputs = {fd: Output(header["max_bytes"]) for fd in self.pipes}
        self.open = set(self.pipes)
        self.timed_out = self.cancelled = False
        self.reset: int | None = header.get("reset")
        """The id of the request `reset` that the guest (this program) does by itself after the command; None
        if there is none."""
        self.drain_until: float | None = None
        self.drain_most = 0.0

    def pause(self, now: float) -> None:
        """Stops the clock of the command's timeout at the monotonic time `now`, until `resume` is called."""
        self.deadline, self.paused = float("inf"), self.deadline - now

    def resume(self, now: float) -> None:
        if self.paused is not None:
            self.deadline, self.paused = now + self.paused, None

    def drain(self, now: float) -> None:
        """Starts a short wait for the command's last output, at the monotonic time `now`. Called when the
        command's first process has ended, because other processes may still write output."""
        self.drain_until, self.drain_most = now + DRAIN_SECONDS, now + DRAIN_MOST

    def heard(self, now: float) -> None:
        """Records that output of the command came at the monotonic time `now`. If the command's first process
        has ended, extends the wait for further output a little."""
        if self.drain_until is not None:
            self.drain_until = min(now + DRAIN_SECONDS, self.drain_most)

    def settled(self, now: float) -> bool:
        """Whether the result of a command can be sent at the monotonic time `now`. The command's first
        process has ended; true if its output is complete, or if the wait for further output is over."""
        assert self.drain_until is not None
        return not self.open or now >= self.drain_until

    def result(self, now: float, began: bool) -> tuple[dict[str, Any], bytes]:
        """Returns the answer (header and body) to the request that ran this command. The body is the kept
        output: standard output, then standard error. `now` is the monotonic time of the command's end;
        `began` says whether its program ran at all."""
        assert self.status is not None
        kept = [self.outputs[fd].bytes() for fd in self.pipes]
        number = os.WTERMSIG(self.status) if os.WIFSIGNALED(self.status) else 0
        code = 128 + number if number else os.WEXITSTATUS(self.status)
        header = {
            "id": self.ident,
            "code": 137 if self.timed_out else code,
            "signal": number,
            "out": len(kept[0]),
            "timed_out": self.timed_out,
            "truncated": any(output.cut for output in self.outputs.values()),
            "seconds": now - self.started,
            "began": began,
        }
        return header, b"".join(kept)


def failed_start(ident: int, code: int, why: str) -> tuple[dict[str, Any], bytes]:
    """Returns the answer (header and body) to the request with the id `ident`, whose command could not start.
    The header contains the exit code `code`; the body is the reason `why`, as the command's standard
    error."""
    header = {"id": ident, "code": code, "signal": 0, "out": 0, "timed_out": False}
    answer = dict(header, truncated=False, seconds=0.0, began=False)
    return answer, f"air: {why}\n".encode("utf-8", "replace")


def stopped(pids: set[int], signalled: set[int]) -> set[int]:
    """Returns those of the processes `pids` that are stopped, or that will stop before they execute anything.

    `signalled` are the pids of processes that got SIGSTOP. If such a process waits inside the kernel, for
    instance for a `vfork` child to execute its program, the process stops when it leaves the kernel, before
    it does anything else.
    """
    return {
        pid
        for pid, state in _states(pids).items()
        if state in (b"T", b"t") or (state == b"D" and pid in signalled)
    }


def _states(pids: set[int]) -> dict[int, bytes]:
    """Returns a dict {pid: state} of the processes with these pids. The state is that of the process's most
    active thread: a tracer can hold the first thread of a process while the other threads run."""
    return {
        pid: fields[0] if fields[THREADS] in (b"0", b"1") else _state_of_threads(str(pid))
        for pid, fields in _stats(pids).items()
    }


def processes() -> dict[int, tuple[int, int, int]]:
    """Returns all live processes, without zombies, as a dict: {pid: (pid of the parent, process group,
    session)}."""
    return {
        pid: (int(fields[1]), int(fields[2]), int(fields[3]))
        for pid, fields in _stats().items()
        if fields[0] not in (b"Z", b"X")
    }


def _stats(pids: set[int] | None = None) -> dict[int, list[bytes]]:
    """Returns a dict {pid: fields} of the processes with these pids, or of all processes. The fields are
    those of `/proc/<pid>/stat` that follow the process's name; the first is the state."""
    table = {}
    for name in os.listdir("/proc") if pids is None else map(str, pids):
        fields = _stat(f"/proc/{name}/stat") if name.isdigit() else None
        if fields is None:
            continue
        if fields[0] == b"Z" and fields[THREADS] not in (b"0", b"1"):
            fields[0] = _state_of_threads(name)
        table[int(name)] = fields
    return table


def _stat(path: str) -> list[bytes] | None:
    try:
        with open(path, "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _state_of_threads(pid: str) -> bytes:
    """Returns the state of the most active thread of a process; `Z` if all its threads have ended. The kernel
    says `Z` even of a process whose first thread only has ended."""
    try:
        names = os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return b"Z"
    each = [_stat(f"/proc/{pid}/task/{name}/stat") for name in names]
    states = {fields[0] for fields in each if fields is not None} - {b"Z", b"X"}
    return min(states, key=b"DTt".find, default=b"Z")


def is_marked(
    pid: int, mark: str, ident: int, strict: bool = False, rights: Rights | None = None
) -> bool:
    """Whether the process `pid` belongs to the command with the id `ident`: whether its environment has the
    mark of this command.

    `mark` is the random text that the guest (this program) puts into the environment of all its commands,
    followed by the command's id. If `strict` is false, the function also returns true for a process without
    the mark of any command, and for a process whose environment cannot be read. `rights` is needed in an open
    box to read the environment of other users' processes.
    """
    try:
        if rights:
            rights.of_process(pid)
        prefix = f"\0{MARK}={mark}-".encode()
        own = prefix + b"%d\0" % ident
        found = _in_environment(pid, (own, prefix))
    except OSError:
        return not strict
    return own in found or not (strict or prefix in found)


def _in_environment(pid: int, texts: tuple[bytes, ...]) -> set[bytes]:
    """Returns those of `texts` that occur in the environment with which a process was started, as in
    `/proc/<pid>/environ`, after a NUL byte; in that of another thread if the process's first thread has
    ended. Raises OSError if the environment cannot be read.

    Reads at most `ENVIRONMENT_BYTES`, in pieces: a process can make all its memory its environment.
    """
    folder = f"/proc/{pid}"
    if (_stat(f"{folder}/stat") or [b""])[0] == b"Z":
        threads = [f"{folder}/task/{name}" for name in os.listdir(f"{folder}/task")]
        states = {thread: (_stat(f"{thread}/stat") or [b"Z"])[0] for thread in threads}
        folder = min(threads, key=lambda thread: states[thread] in (b"Z", b"X"), default=folder)
    found: set[bytes] = set()
    data, left = b"\0", ENVIRONMENT_BYTES
    with open(f"{folder}/environ", "rb", buffering=0) as file:
        while left > 0:
            piece = file.read(min(ENVIRONMENT_PIECE, left))
            left -= len(piece)
            data += piece or b"\0"  # the last entry may have no NUL byte
            found.update(text for text in texts if text in data)
            if not piece:
                break
            data = data[-max(map(len, texts)) :]
    return found


def tree(
    guest: int,
    mark: str,
    leaders: set[int],
    command: Command | None,
    rights: Rights | None = None,
) -> set[int]:
    """Returns the pids of the live processes of `command` (its first process and all descendants), or of all
    commands if `command` is None.

    `guest` is the pid of the guest, air's program in the box. `mark` is the text that the guest puts into the
    environment of its commands. `leaders` are the pids of the first processes of all commands. `rights` is
    needed in an open box to read the environment of other users' processes.
    """
    table = processes()
    pids = {guest} if command is None else set()
    for pid, (parent, group, session) in table.items():
        if command is None or pid == guest:
            continue
        own = command.status is None and command.pid in (pid, group, session)
        lost = parent != 0 and parent not in table  # its parent ended during the listing
        orphan = (parent == guest or lost) and pid not in leaders
        strict = lost and guest != 1  # the process may have nothing to do with this box
        if own or (orphan and is_marked(pid, mark, command.ident, strict, rights)):
            pids.add(pid)
    size = 0
    while size != len(pids):
        size = len(pids)
        pids |= {pid for pid, (parent, _, _) in table.items() if parent in pids}
    return pids - {guest}


def kill(pids: set[int]) -> set[int]:
    """Kills the processes with these `pids`, and returns the pids of those that it could signal. First stops
    all of them, so that none can start another process meanwhile."""
    signal_all(pids, signal.SIGSTOP)
    return signal_all(pids, signal.SIGKILL)


def signal_all(pids: set[int], number: int) -> set[int]:
    """Sends the signal `number` to each process, and returns the pids of those that got it. Skips processes
    that are gone or that the guest (this process) may not signal."""
    signalled = set()
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue
        signalled.add(pid)
    return signalled


class Killer:
    """Kills the processes of a box: those of one command, or all. Also waits for the end of killed processes,
    once for each: on a busy machine a killed process gets CPU time late, and until it ends, it keeps its
    ports, files and memory, which the next command may need.

    `tree` is a function that returns the pids of a command's live processes, or with None those of all
    processes of the box except the guest (air's program in the box). `reap` is a function that collects the
    exit status of dead child processes. `whole` says whether a signal that the guest sends to the pid -1
    reaches exactly the box's processes.
    """

    def __init__(
        self,
        tree: Callable[[Command | None], set[int]],
        reap: Callable[[], None],
        whole: bool,
    ) -> None:
        self.tree, self.reap, self.whole = tree, reap, whole
        self.dying: set[int] = set()
        """The pids of killed processes whose end is still waited for."""
        self.outlasting: set[tuple[int, bytes]] = set()
        """The killed processes that did not end in time, as (pid, time of the start). They are not waited for
        again."""

    def kill(self, command: Command) -> None:
        """Kills all processes of a command, and repeats this until no new descendant appears. Their end is
        waited for by `wait`."""
        seen: set[int] = set()
        if command.status is None:
            # All at once, because a process that forks and exits escapes every listing.
            signal_all({-command.pid}, signal.SIGKILL)
        quiet = 0
        for _ in range(100):
            new = self.tree(command) - seen
            quiet = 0 if new else quiet + 1
            if quiet == QUIET:
                return
            seen |= new
            self.dying |= kill(new)
            self.reap()
        # It forks faster than it is listed: all processes of the box are killed at once.
        if self.whole:
            signal_all({-1}, signal.SIGKILL)
            self.dying |= self.tree(None)

    def kill_all(self) -> bool:
        """Kills all processes of the box except the guest (this process), and repeats this until none is
        left (without a pid namespace: in `QUIET` listings in a row), for at most `STOP_SECONDS`. Returns
        whether all are gone."""
        if self.whole:  # all at once, so no process can start another one before it dies
            signal_all({-1}, signal.SIGKILL)
        give_up, pause = time.monotonic() + STOP_SECONDS, 0.001
        quiet = 0
        while quiet < (1 if self.whole else QUIET):
            processes = self.tree(None)
            quiet = 0 if processes else quiet + 1
            if not processes:
                continue
            if time.monotonic() >= give_up:
                return False
            kill(processes)
            self.reap()
            time.sleep(pause)
            pause = min(1.2 * pause, 0.02)
        return True

    def wait(self) -> None:
        """Waits until the killed processes have ended, at most `DYING_SECONDS`."""
        if not self.dying:
            return
        give_up, pause = time.monotonic() + DYING_SECONDS, 0.001
        while left := self._alive(self.dying) - self.outlasting:
            if time.monotonic() >= give_up:
                break
            time.sleep(pause)
            pause = min(2 * pause, 0.02)
        outlasting = self.outlasting | left
        self.outlasting = outlasting & self._alive({pid for pid, _ in outlasting})
        self.dying = set()
        self.reap()

    @staticmethod
    def _alive(pids: set[int]) -> set[tuple[int, bytes]]:
        table = _stats(pids).items()
        return {(pid, each[STARTED]) for pid, each in table if each[0] not in (b"Z", b"X")}


class Freezer:
    """Stops the processes of a box and continues them later, by signals.

    `everyone` is a function that returns the pids of the box's processes except the guest (air's program in
    the box). `commands` are the running commands by request id. `whole` says whether a signal that the guest
    sends to the pid -1 reaches exactly these processes.
    """

    def __init__(
        self, everyone: Callable[[], set[int]], commands: dict[int, Command], whole: bool
    ) -> None:
        self.everyone, self.commands, self.whole = everyone, commands, whole
        self.before: set[int] | None = None
        """The pids of the processes that were already stopped when the box was frozen, and that `go_on`
        therefore does not continue; None if the box is not frozen."""

    def stop(self, *_frame: object) -> dict[str, Any]:
        """Stops every process of the box and the clocks of all timeouts, until `go_on` is called. Returns an
        empty answer; the request's frame is ignored. Raises OSError if the processes do not stop within
        `STOP_SECONDS`."""
        now = time.monotonic()
        if self.before is None:
            states = _states(self.everyone())
            self.before = {pid for pid, state in states.items() if state == b"T"}
            for command in self.commands.values():
                command.pause(now)
        signalled: set[int] = set()
        quiet = 0
        while time.monotonic() < now + STOP_SECONDS:  # a process stops only when it gets CPU time
            # This listing comes later, so it contains children that began before their parent got the signal.
            everyone = self.everyone()
            running = everyone - stopped(everyone, signalled)
            # Processes that continue one another can look stopped. So all get the signal first, and the
            # states are read twice.
            quiet = 0 if running or not everyone <= signalled else quiet + 1
            if quiet == 2:
                return {}
            signal_all({-1} if self.whole else everyone, signal.SIGSTOP)
            signalled |= everyone
            time.sleep(0.001)
        self.go_on()
        raise OSError(errno.EBUSY, "the processes of the box do not stop")

    def go_on(self, *_frame: object) -> dict[str, Any]:
        """Continues the processes that `stop` has stopped, and the clocks of the timeouts. Does nothing if
        the box is not frozen. Returns an empty answer; the request's frame is ignored."""
        if self.before is not None:
            signal_all(self.everyone() - self.before, signal.SIGCONT)
            self.before = None
            for command in self.commands.values():
                command.resume(time.monotonic())
        return {}
