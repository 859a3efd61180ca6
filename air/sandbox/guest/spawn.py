"""Starts the commands of a box for the guest (air's program in the box), by the system call `fork`.

Other ways are not possible. `posix_spawn` cannot set the user and the limits of each command, and cannot make
it die with the guest (in a process box). `vfork` would stop the guest until the command executes its program,
and other commands can prevent that. Standard library only, Python >= 3.8, no import of `air`.
"""

from __future__ import annotations

import errno
import mmap
import os
import signal
import sys

from air.sandbox.guest.running_commands import MARK, PR_SET_PDEATHSIG, Child, prctl, reason
from air.sandbox.guest.users import become_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from air.sandbox.guest.accounts import Account

NICER = 5
"""The number by which the nice value of commands is higher than that of the guest (air's program in the box),
so that the guest answers even if commands keep all CPUs busy."""
ARGUMENT_BYTES = 100_000
FAILURE_FLAG_BYTES = 4096
"""Size in bytes of the memory that the guest (this program) shares with forked commands. Each command has one
byte there. The forked process sets this byte if the command's program cannot run, so that the guest can
distinguish this from a program that runs and fails."""


class NotStarted(Exception):
    """The error that is raised if a command could not be started. Its text is the reason; `code` is the exit
    status that the host gets as the command's result."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


class Starter:
    """Starts the commands of a box, for the guest (air's program in the box).

    `config` is the guest's configuration. Its field `env` contains the environment variables of commands,
    `rlimits` their resource limits, and `user` their user id (None: the guest's user). `mark` is a random
    text: the guest sets the environment variable `AIR_COMMAND` of each command to this text and the request's
    id, in order to recognise the command's processes.
    """

    def __init__(self, config: dict[str, Any], mark: str) -> None:
        self.env = dict(os.environ, **config["env"])
        self.mark = mark
        self.limits: list[tuple[int, int]] = config["rlimits"]
        self.user: int | None = config.get("user")
        self.shell = shell(self.env.get("PATH", os.defpath))
        self.guest = os.getpid()
        self.failure_flags = mmap.mmap(-1, FAILURE_FLAG_BYTES)
        self.prestarted: Any = None
        """The Python interpreter that the box has started in advance, and which can run some commands faster
        (a `prestarted_python.Prestarted`); None if there is none."""

    def start(self, ident: int, header: dict[str, Any], body: bytes) -> Child:
        """Starts the command of the request with the id `ident`. Returns its pid, and those ends of its pipes
        or terminal that the guest (this process) keeps, as a `Child`. Raises NotStarted if the start fails.

        `header` is the request. If it has `terminal` (rows, columns), the command runs in a new terminal. If
        it has `stdin`, the command's standard input is a pipe. Otherwise the bytes `body` are its standard
        input.
        """
        mine: list[int] = []
        given: list[int] = []
        try:
            pid = self._started(ident, header, body, mine, given)
        except (OSError, ValueError) as error:
            for fd in mine:
                os.close(fd)
            raise NotStarted(126, f"cannot start a command: {reason(error)}") from error
        finally:
            for fd in given:
                os.close(fd)
        source = mine.pop() if header.get("stdin") or header.get("terminal") else None
        return Child(pid, tuple(mine), source)

    def _started(
        self, ident: int, header: dict[str, Any], body: bytes, mine: list[int], given: list[int]
    ) -> int:
        """Opens the streams of a command, forks it and returns its pid. `ident`, `header` and `body` are the
        request's id, header and body.

        `given` and `mine` are lists to which the function adds file descriptors. `given` gets those that only
        the command needs. `mine` gets those that the guest (this process) keeps: first the ends of the
        command's outputs, then, if the guest writes the command's input, the end of the input.
        """
        argv = arguments(header, given, self.shell)
        for fd in given:
            os.set_inheritable(fd, True)  # until `fd` is closed; no other command starts meanwhile
        terminal = header.get("terminal")
        if terminal:
            streams = open_terminal(terminal, mine, given)
        else:
            # Each command opens its own file, so that a lock on its standard input excludes other commands.
            if header.get("stdin"):
                source, sink = os.pipe2(os.O_CLOEXEC)
            else:
                source, sink = memory_file(body) if body else empty(), -1
            given.append(source)
            for _ in range(2):
                out, end = os.pipe2(os.O_CLOEXEC)
                mine.append(out)
                given.append(end)
            mine += [sink] if sink >= 0 else []
            streams = (source, *given[-2:])
        account: Account | None = header.get("account")
        own = (
            {"HOME": account.home, "USER": account.name, "LOGNAME": account.name} if account else {}
        )
        env = dict(self.env, **dict(own, **header["env"]))
        env[MARK] = f"{self.mark}-{ident}"
        slot = ident % FAILURE_FLAG_BYTES
        return self._fork(argv, streams, header, env, slot)

    def failed(self, ident: int) -> None:
        """Records that the program of the command with the request id `ident` did not run."""
        self.failure_flags[ident % FAILURE_FLAG_BYTES] = 1

    def began(self, ident: int) -> bool:
        """Whether the forked process of a command could execute the command's program. False, for example, if
        the program's file is not executable. `ident` is the id of the request that started the command."""
        return not self.failure_flags[ident % FAILURE_FLAG_BYTES]

    def _fork(
        self,
        argv: list[str],
        streams: tuple[int, ...],
        header: dict[str, Any],
        env: dict[str, str],
        slot: int,
    ) -> int:
        """Forks a command and returns its pid. If the command's program cannot run, the forked process prints
        the reason on standard error and exits with status 126 or 127.

        `argv` and `env` are the command's arguments and environment. `streams` are the file descriptors of
        its standard input, output and error. `header` is the request. `slot` is the index of the command's
        byte in the shared memory `failure_flags`.
        """
        self.failure_flags[slot] = 0
        ready = self.prestarted
        if ready is not None:
            if header.get("terminal") or header.get("account"):
                ready.discard()
            elif given := ready.run(argv, streams, header["cwd"], env, MARK):
                return int(given)
        pid = os.fork()
        if pid:
            return pid
        executing = False
        try:
            os.setsid()
            for number, fd in enumerate(streams):
                os.dup2(fd, number)
            if header.get("terminal"):
                take_terminal(0)
            become_command(self.user, header.get("account"))
            if self.limits:
                bound(self.limits)
            os.nice(NICER)
            if self.guest != 1:
                prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            os.chdir(header["cwd"])
            executing = True
            run_from_path(os.execve, argv, env)
        except BaseException as error:  # nothing may return into the guest's loop
            self.failure_flags[slot] = 1
            os.write(2, f"air: {cannot_run(argv, error)}\n".encode("utf-8", "replace"))
            os._exit(127 if executing and isinstance(error, FileNotFoundError) else 126)
        os._exit(126)


def shell(path: str) -> str:
    """Returns the name of the shell that runs scripts: `bash`, else `sh`. Returns "" if the folders in `path`
    (in the form of the variable PATH) contain neither."""
    for name in ("bash", "sh"):
        if any(os.access(f"{folder or '.'}/{name}", os.X_OK) for folder in path.split(":")):
            return name
    return ""


def arguments(header: dict[str, Any], fds: list[int], shell: str) -> list[str]:
    """Returns the program and its arguments for the command that the request `header` describes. `shell` is
    the shell that runs scripts. Raises NotStarted if the command is a script and `shell` is empty. A long
    script is put into a file in memory; the file's descriptor is added to the list `fds`."""
    if "argv" in header:
        return list(header["argv"])
    if not shell:
        raise NotStarted(127, "cannot run a script: there is neither `bash` nor `sh`")
    script: str = header["script"]
    if len(script) * 4 < ARGUMENT_BYTES:
        return [shell, "-c", script]
    fds.append(memory_file(os.fsencode(script)))
    return [shell, f"/proc/self/fd/{fds[-1]}"]


def empty() -> int:
    """Opens /dev/null as the empty standard input of a command, and returns its file descriptor."""
    return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)


def memory_file(data: bytes) -> int:
    """Makes a file in memory with the contents `data`, and returns its file descriptor."""
    fd = os.memfd_create("air", os.MFD_CLOEXEC)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def cannot_run(argv: list[str], error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno in (errno.EAGAIN, errno.ENOMEM):
        return f"cannot start a command: {reason(error)}"  # the user has too many processes
    return f"cannot run {argv[0] if argv else ''!r}: {reason(error)}"


def bound(limits: list[tuple[int, int]]) -> None:
    """Sets resource limits of this process, given as pairs (a constant `RLIMIT_…` of the module `resource`,
    limit). A limit above the present hard limit is lowered to the hard limit."""
    import resource

    for number, most in limits:
        hard = resource.getrlimit(number)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(number, (most, most))


def run_from_path(run: Callable[..., Any], argv: list[str], env: dict[str, str]) -> Any:
    """Finds the program `argv[0]` in the folders of PATH (unless the name contains `/`), calls the function
    `run` with the program's path, `argv` and `env`, and returns its result.

    Raises OSError if there is no such program, ValueError if `argv` is empty.
    """
    if not argv:
        raise ValueError("the command is empty")
    if "/" in argv[0]:
        return run(argv[0], argv, env)
    missing: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    for folder in env.get("PATH", os.defpath).split(":"):
        path = f"{folder or '.'}/{argv[0]}"
        try:
            if os.access(path, os.F_OK):  # trying a missing file costs as much as a start
                return run(path, argv, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            missing = error
    raise missing


def open_terminal(size: list[int], mine: list[int], given: list[int]) -> tuple[int, ...]:
    """Opens a new terminal of `size` (rows, columns). Returns three times the file descriptor of the
    terminal, as a command's standard input, output and error.

    Adds the command's end of the terminal to the list `given`. Adds the end of the guest (this process) to
    the list `mine` twice: one descriptor to read from, and one to write to.
    """
    master, slave = os.openpty()
    given.append(slave)
    mine.append(master)
    mine.append(os.dup(master))
    resize_terminal(master, size)
    return slave, slave, slave


def take_terminal(slave: int) -> None:
    """Makes the terminal with the file descriptor `slave` the controlling terminal of this session. The
    session must not have one yet."""
    import fcntl
    import termios

    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)


def resize_terminal(master: int, size: list[int]) -> None:
    """Sets the `size` (rows, columns) of the terminal with the file descriptor `master`. If the size changes,
    the processes in the terminal's foreground get SIGWINCH.

    Raises ValueError if a number is not from 1 to 65535.
    """
    import fcntl  # too slow to import at every start of a box
    import termios

    if not all(0 < number < 1 << 16 for number in size):
        raise ValueError("the rows and columns of a terminal are numbers from 1 to 65535")
    shorts = [*size, 0, 0]
    data = b"".join(number.to_bytes(2, sys.byteorder) for number in shorts)
    fcntl.ioctl(master, termios.TIOCSWINSZ, data)


def unread(fd: int) -> int:
    """Returns the number of bytes in the pipe or terminal with the file descriptor `fd` that no reader has
    read yet."""
    import fcntl
    import termios

    return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, b"\0" * 4), sys.byteorder)
