"""Lets a box serve one user after another: resets, and a Python that runs before the commands that need it.

The commands of a closed box can change only little: processes, the files in a few folders in memory, System V
and POSIX objects, and the loopback network. A reset removes the files and compares everything else with the
state of the new box; it repairs nothing. Any difference, anything unusual in what commands did, and any
request that this module does not know make the box unfit. What remains are counters of the kernel, such as
the next process id.

`Prestarted` has one fork of a Python ready (see `air.sandbox.reuse.zygote`), already as the user of
commands, which waits for its job: a command that runs the script, or any other program. A fork runs one job
and ends. Standard library only, Python >= 3.8, no import of `air`.
"""

# ruff: noqa: PTH208, SIM105
from __future__ import annotations

import array
import binascii
import ctypes
import errno
import fcntl
import os
import select
import signal
import socket
import stat
import time

from air.sandbox.guest.users import (
    SETGID,
    SETPCAP,
    SETUID,
    SYS_RESOURCE,
    keep_capabilities,
    limit_capabilities,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from air.sandbox.guest.main import Guest
    from air.sandbox.guest.running_commands import Command
    from air.sandbox.guest.spawn import Starter

USUAL = {"abort", "beat", "exec", "get", "kill", "lease", "mkdir", "reset", "write"}
"""The requests that leave only what a reset can undo or find."""
SETTLE_SECONDS, PAUSE = 0.25, 0.001
"""How long a reset waits for what ends by itself, for example for a process that saw its parent end."""
MOST_ENTRIES, MOST_DEPTH = 10_000, 64
LISTED = ("/dev/mqueue", "/dev/pts")
COUNTED = ("/proc/sysvipc/msg", "/proc/sysvipc/sem", "/proc/sysvipc/shm", "/proc/net/unix")
"""Tables with one line for each object in the box. Objects that outlive processes appear here."""
DEVICES = "/dev"
"""Anybody may set the times of its files to now."""
LOOPBACK = "/proc/net/dev"
"""Its counters show whether anything used the loopback network. Ports stay taken after such a connection."""
TABLE_BYTES = 1 << 14
FS_IOC_GETFLAGS = 0x8008_6601
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_KEYCTL = {"x86_64": 250, "aarch64": 219}


class Unfit(Exception):
    """Error: the box cannot be reset. Its text is the reason."""


class Reuse:
    """Resets a box.

    `config` has the `folders` in memory that commands can write, and `prestart` for a Python to start.
    `starter` starts the commands. Ends this process if the Python does not start.
    """

    def __init__(self, config: dict[str, Any], starter: Starter) -> None:
        self.folders: list[str] = config["folders"]
        self.starter = starter
        self.prestarted: Prestarted | None = None
        if config.get("prestart"):
            try:
                self.prestarted = starter.prestarted = Prestarted(config["prestart"], starter)
            except NotPrestarted as error:
                os.write(2, f"{error}\n".encode("utf-8", "replace"))
                os._exit(1)
        self.reason = ""
        """Why the box must be thrown away; empty as long as nothing unusual happened."""
        self.strays = 0
        """How many processes that the guest did not start it has reaped since the last sweep."""
        self.opened: dict[str, int] = {}
        """Descriptors of the folders, and of the tables that exist."""
        self.new: dict[str, tuple[int, int, int]] = {}
        """The times of each folder in the new box, and how many files its file system has room for."""
        self.state: dict[str, Any] = {}

    def saw_request(self, header: dict[str, Any]) -> None:
        """Notes a request of the harness."""
        if header["op"] not in USUAL or header.get("user"):
            self.reason = self.reason or f"it was used for {header['op']!r}"

    def saw_end(self, command: Command) -> None:
        """Notes how a command ended."""
        if command.timed_out or command.cancelled:
            self.reason = self.reason or "a command was stopped"
        elif command.status is None or command.status & 0x7F == signal.SIGKILL:
            self.reason = self.reason or "a command was killed"
        elif command.open:
            self.reason = self.reason or "a process kept the output of its command"

    def begin(self, guest: Guest) -> None:
        """Records the state of the new box, and forks the Python. Commands may run only afterwards."""
        self.guest = guest
        if self.prestarted is not None:
            guest.epoll.register(self.prestarted.control, select.EPOLLIN)
            self.prestarted.prepare()
        if _has_keyrings():
            self.reason = "its kernel keeps keys beyond the end of processes"
            return
        for folder in self.folders:
            self.opened[folder] = os.open(folder, _FOLDER)
            self.new[folder] = _contents(self.opened[folder])
        for path in (*COUNTED, LOOPBACK):
            try:
                self.opened[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
        self.state = self._observed()

    def event(self, fd: int) -> bool:
        """Handles an event of the descriptor `fd`; returns False if that does not belong to the Python."""
        prestarted = self.prestarted
        if prestarted is None or fd != prestarted.control.fileno():
            return False
        try:
            end = prestarted.ended()
        except NotPrestarted:
            self.guest.epoll.unregister(prestarted.control)
            prestarted.control.close()
            self.prestarted = self.starter.prestarted = None
            self.reason = self.reason or "its Python was ended"
            self._note_lost(prestarted.fork_pid)
            return True
        for command in self.guest.commands.values():
            if end is not None and command.pid == end[0]:
                command.status = end[1]
                if not end[2]:
                    self.starter.failed(command.ident)
        return True

    def _note_lost(self, pid: int) -> None:
        """Notes the end of the fork `pid` if the Python, which a timeout also kills, took its status."""
        self.guest.reap()  # the guest inherits a fork that the Python has not reaped
        for command in self.guest.commands.values():
            if command.pid == pid and command.status is None and pid not in _pids():
                command.status = int(signal.SIGKILL)

    def reset(self, *_frame: object) -> dict[str, Any]:
        """Makes the box as new, or answers why that is impossible."""
        try:
            if self.reason or self.guest.commands or self.guest.pipes:
                raise Unfit(self.reason or "a command has not ended")
            self._check_processes()
            self.strays = 0
            sweep(self.prestarted)
            self.guest.reap()
            self._check_swept()
            self._clean()
        except (Unfit, NotPrestarted) as error:
            self.reason = str(error)
        self.guest.deadline = float("inf")
        return {"reason": self.reason}

    def _own_pids(self) -> set[int]:
        """Returns the pids of the guest, the Python that it started in advance, and the fork of that."""
        ready = self.prestarted
        return {self.guest.me} | ({ready.pid, ready.fork_pid} - {0} if ready else set())

    def _check_processes(self) -> None:
        """Raises Unfit unless the processes of the box are only the guest's own, or soon are."""
        mine = self._own_pids()

        def problem() -> str | None:
            self.guest.reap()  # until then a dead child counts
            return None if _pids() == mine else "processes remained"

        self._settle(problem)

    def _check_swept(self) -> None:
        """Raises Unfit if a sweep, a kill of all processes but the guest's own, has found any.

        After a sweep nothing can start a process, so a listing misses none. The guest reaps what the sweep
        has killed, because orphans become its children.
        """
        if _pids() != self._own_pids() or self.strays:
            raise Unfit("processes hid from the listing")

    def _clean(self) -> None:
        """Removes all files of the box, and raises Unfit if anything differs from the new box."""
        room = [MOST_ENTRIES]
        for folder in self.folders:
            fd = self.opened[folder]
            try:
                if _contents(fd) != self.new[folder]:
                    _empty(fd, room, MOST_DEPTH)
                    os.utime(fd, ns=self.new[folder][:2])
            except OSError as error:
                raise Unfit(f"the files in {folder} cannot be removed: {error.strerror}") from error
        self._settle(self._difference)

    def _difference(self) -> str | None:
        state = self._observed()
        names = [name for name in self.state if state[name] != self.state[name]]
        return f"{names[0]} is not as it was" if names else None

    def _observed(self) -> dict[str, Any]:
        """Returns what a reset compares: equal values mean that nothing of the commands is there."""
        state: dict[str, Any] = {}
        for folder in self.folders:
            fd = self.opened[folder]
            status, room = os.fstat(fd), os.fstatvfs(fd)
            state[folder] = (
                (status.st_mode, status.st_uid, status.st_gid, status.st_nlink, status.st_size),
                # Files that only a process in flight holds open would still take room.
                (room.f_ffree, room.f_bfree, room.f_files, room.f_blocks),
                sorted(os.listxattr(fd)),
                _inode_flags(fd),
            )
        for path in LISTED:
            state[path] = _names(path)
        for path in COUNTED:
            state[path] = self._table(path).count(b"\n")
        state[LOOPBACK] = self._table(LOOPBACK)
        state[DEVICES] = _times(DEVICES, self.folders)
        return state

    def _table(self, path: str) -> bytes:
        """Returns the beginning of a table, which is all of it in a new box; nothing if there is none."""
        fd = self.opened.get(path)
        return b"" if fd is None else os.pread(fd, TABLE_BYTES, 0)

    def _settle(self, problem: Callable[[], str | None]) -> None:
        """Calls `problem` until it returns None; raises Unfit with its text after `SETTLE_SECONDS`."""
        until = time.monotonic() + SETTLE_SECONDS
        while (text := problem()) is not None:
            if time.monotonic() > until:
                raise Unfit(text)
            time.sleep(PAUSE)


def sweep(prestarted: Prestarted | None) -> None:
    """Kills all processes of the box but the guest and the Python that it started in advance, all at once.

    With such a Python, its new fork does that, because a kill by the guest would end the Python, too.
    """
    if prestarted is not None:
        prestarted.prepare()
        return
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _empty(folder: int, room: list[int], depth: int) -> None:
    """Removes everything in the folder descriptor `folder`; raises Unfit if it is too much."""
    if not depth:
        raise Unfit("its folders are too deep")
    for name in os.listdir(folder):
        room[0] -= 1
        if room[0] < 0:
            raise Unfit("it has too many files")
        if not stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
            os.unlink(name, dir_fd=folder)
            continue
        os.chmod(name, 0o700, dir_fd=folder)
        inner = os.open(name, _FOLDER, dir_fd=folder)
        try:
            _empty(inner, room, depth - 1)
        finally:
            os.close(inner)
        os.rmdir(name, dir_fd=folder)


def _contents(folder: int) -> tuple[int, int, int]:
    """Returns the times of a folder, and how many files its file system still has room for.

    A file takes room even if nothing but an open descriptor leads to it.
    """
    status = os.fstat(folder)
    return status.st_atime_ns, status.st_mtime_ns, os.fstatvfs(folder).f_ffree


def _pids() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


def _names(path: str) -> list[str] | None:
    try:
        return sorted(os.listdir(path))
    except FileNotFoundError:
        return None


def _times(folder: str, but: list[str]) -> dict[str, tuple[int, int]]:
    """Returns when each file in `folder` was last changed, without the paths `but`."""
    paths = {f"{folder}/{name}" for name in os.listdir(folder)}.difference(but)
    found = {path: os.lstat(path) for path in paths}
    return {path: (status.st_mtime_ns, status.st_ctime_ns) for path, status in found.items()}


def _inode_flags(folder: int) -> bytes:
    """Returns the flags of a folder that `chattr` sets; empty if the file system has none."""
    try:
        return bytes(fcntl.ioctl(folder, FS_IOC_GETFLAGS, bytes(8)))
    except OSError:
        return b""


def _has_keyrings() -> bool:
    """Whether commands can use the kernel's keyrings, of which a user's outlives all its processes.

    Container engines forbid the system call. On an unknown processor the answer is yes.
    """
    number = _KEYCTL.get(os.uname().machine)
    if number is None:
        return True
    libc = ctypes.CDLL(None, use_errno=True)
    user_keyring, get_id = -4, 0
    if libc.syscall(number, get_id, user_keyring, 0) >= 0:
        return True
    return ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS)


CONTROL, PROGRAM = 3, 4
JOB_BYTES = 1 << 16
CAPABILITIES = (SETGID, SETUID, SETPCAP, SYS_RESOURCE)
START_SECONDS, FORK_SECONDS = 20.0, 5.0
STARTED, READY, FAILED = b"started", b"ready", b"failed"


class NotPrestarted(Exception):
    """Error: the Python that a box should have started in advance does not start or does not answer."""


class Prestarted:
    """A Python that is started once per box, and its fork that waits for a job.

    `config` has the Python's command line `argv`, its folder `cwd` and, in Base64, the zip file `program`
    that contains `sitecustomize`. `starter` starts the commands.
    """

    def __init__(self, config: dict[str, Any], starter: Starter) -> None:
        self.argv: list[str] = config["argv"]
        self.cwd: str = config["cwd"]
        self.env = starter.env
        self.uid = starter.user or 0
        self.jobs: socket.socket | None = None
        """The socket of the fork that waits for a job, or that has got one; None if there is none."""
        self.fork_pid = 0
        """The pid of the last fork, until it has ended; else 0."""
        self.waits = False
        """Whether the last fork still waits for its job."""
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = os.memfd_create("air", os.MFD_CLOEXEC)
        os.write(program, binascii.a2b_base64(config["program"]))
        self.pid = self._launch(theirs.fileno(), program)
        theirs.close()
        os.close(program)
        if self._heard(self.control, START_SECONDS) != STARTED:
            raise NotPrestarted(f"{self.argv[0]} did not start")

    def _launch(self, control: int, program: int) -> int:
        pid = os.fork()
        if pid:
            return pid
        try:
            os.setsid()
            control, program = os.dup(control), os.dup(program)
            # A command's usual streams, whose kinds Python remembers from its start.
            for number, fd in enumerate((os.open("/dev/null", os.O_RDONLY), os.pipe()[1])):
                os.dup2(fd, number)
            # Neither number may be overwritten before it was copied.
            spare = max(control, program, PROGRAM) + 1
            os.dup2(control, spare)
            os.dup2(program, spare + 1)
            os.dup2(spare, CONTROL)
            os.dup2(spare + 1, PROGRAM)
            os.closerange(PROGRAM + 1, spare + 2)
            os.setgroups([])
            limit_capabilities(CAPABILITIES)
            keep_capabilities(CAPABILITIES)
            os.chdir(self.cwd)
            path = f"/proc/self/fd/{PROGRAM}"
            others = self.env.get("PYTHONPATH")
            env = dict(self.env, PYTHONPATH=f"{path}:{others}" if others else path)
            os.execvpe(self.argv[0], self.argv, env)
        except BaseException as error:  # nothing may return into the guest's loop
            os.write(2, f"cannot start {self.argv[0]!r} in advance: {error}\n".encode())
        os._exit(1)

    def prepare(self) -> None:
        """Makes a new fork, which kills all other processes of its user. Raises NotPrestarted.

        It waits until the fork is ready, so no command may run.
        """
        self.discard()
        self.jobs, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        right = array.array("i", [theirs.fileno()])
        try:
            self.control.sendmsg(
                [b"%d" % self.uid], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, right)]
            )
            theirs.close()
            self.fork_pid = int(self._heard(self.control, FORK_SECONDS))
            if self._heard(self.jobs, FORK_SECONDS) != READY:
                raise NotPrestarted("its fork is not ready")
        except (OSError, ValueError) as error:
            raise NotPrestarted(str(error)) from error
        self.waits = True

    def run(
        self, argv: list[str], streams: tuple[int, ...], cwd: str, env: dict[str, str], mark: str
    ) -> int | None:
        """Gives the waiting fork a command; returns its pid, or None if the command must start otherwise.

        `mark` is the name of the one variable that differs for each command.
        """
        if not self.waits or self.jobs is None:
            return None
        plain = (argv, cwd.rstrip("/")) == (self.argv, self.cwd) and {**env, mark: ""} == {
            **self.env,
            mark: "",
        }
        texts = [*argv, *(f"{name}={value}" for name, value in env.items())]
        parts = ["script" if plain else "program", mark, env[mark], cwd, str(len(argv)), *texts]
        job = b"\0".join(os.fsencode(part) for part in parts)
        inherits = any(part.startswith("/proc/self/fd/") for part in argv)
        if inherits or not argv or len(job) > JOB_BYTES or any("\0" in part for part in parts):
            self.discard()
            return None
        rights = array.array("i", streams)
        try:
            self.jobs.sendmsg([job], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        except OSError:
            self.discard()
            return None
        self.waits = False
        return self.fork_pid

    def ended(self) -> tuple[int, int, bool] | None:
        """Receives the end of the last fork: its pid, its wait status, and whether its program ran at all.

        Returns None if there is no such message. Raises NotPrestarted if the Python has ended.
        """
        try:
            message = self.control.recv(64, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except OSError:
            message = b""
        if not message:
            raise NotPrestarted("it has ended")
        pid, status = map(int, message.split())
        began = True
        if self.jobs is not None:
            began = self._heard(self.jobs, 0.0) != FAILED
            self.jobs.close()
        self.jobs, self.fork_pid, self.waits = None, 0, False
        return pid, status, began

    def discard(self) -> None:
        """Ends the fork that waits for a job, if there is one. Commands of the same user could harm it."""
        if self.fork_pid and self.waits and self.jobs is not None:
            self.jobs.close()
            self.jobs, self.waits = None, False
            self._heard(self.control, FORK_SECONDS)
            self.fork_pid = 0

    def _heard(self, source: socket.socket, seconds: float) -> bytes:
        """Receives one message; returns no bytes if none comes in time or the other side is gone."""
        try:
            if select.select([source], [], [], seconds)[0]:
                return source.recv(64)
        except OSError:
            pass
        return b""
