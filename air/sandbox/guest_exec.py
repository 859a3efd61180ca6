"""What the guest knows of processes: capped output, how a command starts, and how one is found.

Part of the guest: standard library only, Python >= 3.8, no import of `air`.
"""

# ruff: noqa: PTH118, PTH123, PTH208
# Neither pathlib nor contextlib is worth its import at every start of a box.
from __future__ import annotations

import ctypes
import errno
import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36
ARGUMENT_BYTES = 100_000
MARK = "AIR_COMMAND"
SIGNALS = [
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE),
    *(signal.SIGALRM, signal.SIGTERM, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
    *(signal.SIGXCPU, signal.SIGXFSZ),
]
_LIBC = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int) -> None:
    """Sets one attribute of this process; raises OSError where the kernel refuses."""
    if _LIBC.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def reason(error: BaseException) -> str:
    """An exception as half a line."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or repr(error)


class Output:
    """What one stream of a command printed: the first and the last half of `cap` bytes."""

    def __init__(self, cap: int) -> None:
        self.head_cap, self.tail_cap = cap - cap // 2, cap // 2
        self.head, self.tail, self.cut = bytearray(), bytearray(), 0

    def add(self, data: bytes) -> None:
        """Takes more output; memory stays bounded by about twice the cap."""
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
        """What is kept; where something was cut, a line between head and tail says how much."""
        self._trim()
        mark = b"\n[... %d bytes cut ...]\n" % self.cut if self.cut else b""
        return bytes(self.head) + mark + bytes(self.tail)


class Command:
    """A running command: its leader's pid, its two pipes, its deadline, and how far it has come."""

    def __init__(self, ident: int, pid: int, out: int, err: int, header: dict[str, Any]) -> None:
        self.ident, self.pid, self.pipes = ident, pid, (out, err)
        self.status: int | None = None
        self.deadline: float = header["now"] + header["timeout"]
        self.started: float = header["now"]
        self.killed: int | None = header["killed"]
        self.outputs = {fd: Output(header["max_bytes"]) for fd in self.pipes}
        self.open = set(self.pipes)
        self.timed_out = self.cancelled = False
        self.drain_until: float | None = None
        self.drain_most = 0.0

    def result(self, now: float, began: bool, killed: int | None) -> tuple[dict[str, Any], bytes]:
        """The answer's header and body, once the leader is dead.

        Args:
            began: whether its program ran at all.
            killed: processes of the box killed so far for want of memory.
        """
        assert self.status is not None
        out, err = (self.outputs[fd].bytes() for fd in self.pipes)
        number = os.WTERMSIG(self.status) if os.WIFSIGNALED(self.status) else 0
        code = 128 + number if number else os.WEXITSTATUS(self.status)
        header = {
            "id": self.ident,
            "code": 137 if self.timed_out else code,
            "out": len(out),
            "timed_out": self.timed_out,
            "truncated": any(output.cut for output in self.outputs.values()),
            "seconds": now - self.started,
            "signal": number,
            "began": began,
            "out_of_memory": None if killed is None else killed > (self.killed or 0),
        }
        return header, out + err


def failed_start(ident: int, error: BaseException) -> tuple[dict[str, Any], bytes]:
    """The answer to a command that could not even be forked (no process left, say)."""
    text = f"air: cannot start a command: {reason(error)}\n".encode("utf-8", "replace")
    header = {"id": ident, "code": 126, "out": 0, "timed_out": False, "truncated": False}
    return dict(header, seconds=0.0, signal=0, began=False, out_of_memory=None), text


def memory_file(data: bytes) -> int:
    """A descriptor from which `data` can be read."""
    fd = os.memfd_create("air", os.MFD_CLOEXEC)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def arguments(header: dict[str, Any], fds: list[int]) -> list[str]:
    """The argument vector; a script too long for one argument is read from memory instead."""
    if "argv" in header:
        return list(header["argv"])
    script: str = header["script"]
    if len(script) * 4 < ARGUMENT_BYTES:
        return ["bash", "-c", script]
    fds.append(memory_file(os.fsencode(script)))
    return ["bash", f"/proc/self/fd/{fds[-1]}"]


def become(
    argv: list[str],
    streams: tuple[int, int, int],
    script: list[int],
    cwd: str,
    env: dict[str, str],
    limits: list[tuple[int, int]],
    guest: int,
    stillborn: memoryview,
) -> NoReturn:
    """In a new process: becomes the command, or prints why not and exits 126 (127: not found).

    Args:
        stillborn: a byte that the guest sees, set where it does not become the command.
    """
    executing = False
    try:
        os.setsid()
        for number, fd in enumerate(streams):
            os.dup2(fd, number)
        for fd in script:
            os.set_inheritable(fd, True)
        for signal_number in SIGNALS:
            signal.signal(signal_number, signal.SIG_DFL)
        prctl(PR_SET_DUMPABLE, 1)  # else its own /proc entries would belong to root
        score = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        os.write(score, b"1000")  # out of memory ends commands, never the guest
        if limits:
            _limit(limits)
        os.nice(5)  # a guest beside busy commands still answers
        if guest != 1:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.chdir(cwd)
        executing = True
        _execute(argv, env)
    except OSError as error:
        stillborn[0] = 1
        os.write(2, f"air: cannot run {argv[0]!r}: {reason(error)}\n".encode())
        os._exit(127 if executing and error.errno == errno.ENOENT else 126)
    except BaseException as error:  # nothing may return into the guest's loop
        stillborn[0] = 1
        os.write(2, f"air: cannot run the command: {error}\n".encode("utf-8", "replace"))
    os._exit(126)


def _limit(limits: list[tuple[int, int]]) -> None:
    import resource

    for number, most in limits:
        hard = resource.getrlimit(number)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(number, (most, most))


def _execute(argv: list[str], env: dict[str, str]) -> None:
    if not argv:
        raise ValueError("the command is empty")
    if "/" in argv[0]:
        os.execve(argv[0], argv, env)
    missing: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    for folder in env.get("PATH", os.defpath).split(":"):
        try:
            os.execve(os.path.join(folder, argv[0]), argv, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            missing = error
    raise missing


def processes() -> dict[int, tuple[int, int, int]]:
    """Every live process: pid -> (parent, process group, session). Zombies are left out."""
    table = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields[0] not in (b"Z", b"X"):
            table[int(name)] = (int(fields[1]), int(fields[2]), int(fields[3]))
    return table


def is_marked(pid: int, mark: str, ident: int, strict: bool = False) -> bool:
    """Whether an orphan is of command `ident`; unless `strict`, one without a mark counts as such."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            parts = file.read().split(b"\0")
    except OSError:
        return not strict
    ours = f"{MARK}={mark}-".encode()
    if strict:
        return ours + b"%d" % ident in parts
    return ours + b"%d" % ident in parts or not any(part.startswith(ours) for part in parts)


def signal_all(pids: set[int], number: int) -> None:
    """Signals each; one that is gone already is fine, one that is not ours is not touched."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue
