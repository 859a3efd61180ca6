"""The part of the guest that resets a box, so that the box serves one caller after another.

Commands of a closed box (the opposite of an open box) can change only little: processes, the files in a few
folders in memory, System V and POSIX objects such as message queues and semaphores, and the loopback network.
A reset removes the files, and compares everything else, also the processes, with the state of the new box. It
repairs nothing else. The box becomes "unfit" (it can never be reset again) if the comparison finds a
difference, if a command was killed or left a process that holds its output open, or if the air process that
started the box sent a request other than those in `USUAL`. Only counters of the kernel, such as the next
process id, are not compared.

Standard library only, Python >= 3.8. The guest loads `air.sandbox.reuse.prestarted` before this module.
"""

# ruff: noqa: PTH208, SIM105
from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import select
import signal
import stat
import time

from air.sandbox.reuse.prestarted import NotPrestarted, Prestarted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from air.sandbox.guest.main import Guest
    from air.sandbox.guest.running_commands import Command
    from air.sandbox.guest.spawn import Starter

USUAL = {"abort", "beat", "exec", "get", "kill", "lease", "mkdir", "reset", "write"}
"""The operations of the guest after which a box can still be reset for another caller, because the reset can
undo or detect all their effects."""
SETTLE_SECONDS, PAUSE = 0.25, 0.001
"""Two times in seconds. A reset waits at most `SETTLE_SECONDS` for what disappears by itself, such as a
process whose parent has ended; it looks again after each `PAUSE`."""
MOST_ENTRIES, MOST_DEPTH = 10_000, 64
LISTED = ("/dev/mqueue", "/dev/pts")
COUNTED = ("/proc/sysvipc/msg", "/proc/sysvipc/sem", "/proc/sysvipc/shm", "/proc/net/unix")
"""Tables of the kernel with one line for each object (queue, semaphore, shared memory, socket) that can
outlive its process. A reset of the box compares the numbers of lines with those of the new box."""
DEVICES = "/dev"
"""A folder with files whose times (mtime and ctime) every user can change. A reset of the box compares these
times with those of the new box, because commands could encode data in the times for the next caller."""
LOOPBACK = "/proc/net/dev"
"""A table of the kernel whose counters show whether anything has used the loopback network. If so, a reset of
the box must fail, because a connection keeps its port in use for a while after its end."""
TABLE_BYTES = 1 << 14
FS_IOC_GETFLAGS = 0x8008_6601
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_KEYCTL = {"x86_64": 250, "aarch64": 219}


class Unfit(Exception):
    """The error that is raised if the box cannot be reset. Its text is the reason."""


class Reuse:
    """Resets a box, and records everything that makes a reset impossible.

    `config` has the key `folders` (the folders in memory that commands can write) and, if a Python
    interpreter is to be started in advance, `prestart`. `starter` starts the commands. If that interpreter
    does not start, this process (the guest) exits.
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
        """The reason why the box cannot be reset any more; empty while a reset is possible."""
        self.strays = 0
        """The number of processes that have ended since the last reset began to kill processes, and that the
        guest had not started. If there are any, a process has hidden from the list of processes."""
        self.opened: dict[str, int] = {}
        """Open file descriptors by path: of the folders, and of the kernel's tables that exist."""
        self.new: dict[str, tuple[int, int, int]] = {}
        """For each folder, its times of last access and last change when the box was new, and the number of
        further files for which its file system had room."""
        self.state: dict[str, Any] = {}

    def saw_request(self, header: dict[str, Any]) -> None:
        """Records a request to the guest. `header` is the header of the request's frame. If a reset cannot
        undo the effects of this kind of request, the box cannot be reset any more."""
        if header["op"] not in USUAL or header.get("user"):
            self.reason = self.reason or f"it was used for {header['op']!r}"

    def saw_end(self, command: Command) -> None:
        """Records how a command ended. If the command exceeded its timeout, was cancelled or killed, or left
        a process that holds the command's output open, the box cannot be reset any more."""
        if command.timed_out or command.cancelled:
            self.reason = self.reason or "a command was stopped"
        elif command.status is None or command.status & 0x7F == signal.SIGKILL:
            self.reason = self.reason or "a command was killed"
        elif command.open:
            self.reason = self.reason or "a process kept the output of its command"

    def begin(self, guest: Guest) -> None:
        """Records the state of the new box, and makes the first fork of the interpreter that was started in
        advance, if there is one. `guest` is the object that handles the requests to the box. No command may
        run before this call."""
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
        """Handles an epoll event of the file descriptor `fd`. Returns false if `fd` does not belong to the
        interpreter that was started in advance."""
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
        """Records that the command in the fork `pid` of the interpreter was killed, if the fork is gone and
        its exit status is lost.

        The interpreter normally reports the exit status of its forks to the guest. A status is lost if a
        timeout kills both the fork and the interpreter, after the interpreter had collected the status and
        before it reported it.
        """
        self.guest.reap()  # the guest becomes the parent of a fork that the Python has not reaped
        for command in self.guest.commands.values():
            if command.pid == pid and command.status is None and pid not in _pids():
                command.status = int(signal.SIGKILL)

    def reset(self, *_frame: object) -> dict[str, Any]:
        """Handles a `reset` request: restores the box to the state of a new box. Returns the answer, a dict
        whose only key is `reason`: the reason why the reset is impossible, or an empty text after
        success."""
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
        """Returns the pids of the guest, of the interpreter that it started in advance, and of that
        interpreter's fork."""
        ready = self.prestarted
        return {self.guest.me} | ({ready.pid, ready.fork_pid} - {0} if ready else set())

    def _check_processes(self) -> None:
        """Raises Unfit if the box has processes other than the guest, its interpreter and the interpreter's
        fork, and they do not end within `SETTLE_SECONDS`."""
        mine = self._own_pids()

        def problem() -> str | None:
            self.guest.reap()  # otherwise a dead child would still be listed
            return None if _pids() == mine else "processes remained"

        self._settle(problem)

    def _check_swept(self) -> None:
        """Raises Unfit if the reset has killed a process that was missing from the list of processes which
        `_check_processes` had read. Call it after all processes except those of `_own_pids` were killed.

        After the killing, nothing can start a process, so a new list of the processes is complete. The guest
        reaps the killed processes, because orphans become its children.
        """
        if _pids() != self._own_pids() or self.strays:
            raise Unfit("processes hid from the listing")

    def _clean(self) -> None:
        """Removes all files in the writable folders. Raises Unfit if anything else in the box then differs
        from the state of the new box."""
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
        """Returns the state of the box that a reset compares with the state of the new box. If both are
        equal, commands have left nothing behind."""
        state: dict[str, Any] = {}
        for folder in self.folders:
            fd = self.opened[folder]
            status, room = os.fstat(fd), os.fstatvfs(fd)
            state[folder] = (
                (status.st_mode, status.st_uid, status.st_gid, status.st_nlink, status.st_size),
                # This also shows removed files that a file descriptor still holds open somewhere.
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
        """Returns the first `TABLE_BYTES` bytes of the kernel's table `path`, or no bytes if the kernel has
        no such table. The whole table of a new box is shorter."""
        fd = self.opened.get(path)
        return b"" if fd is None else os.pread(fd, TABLE_BYTES, 0)

    def _settle(self, problem: Callable[[], str | None]) -> None:
        """Calls the function `problem`, which returns a text if something is wrong, repeatedly until it
        returns None. If it still returns a text after `SETTLE_SECONDS`, raises Unfit with this text."""
        until = time.monotonic() + SETTLE_SECONDS
        while (text := problem()) is not None:
            if time.monotonic() > until:
                raise Unfit(text)
            time.sleep(PAUSE)


def sweep(prestarted: Prestarted | None) -> None:
    """Kills all processes of the box at once, except the guest and the interpreter that was started in
    advance.

    If there is such an interpreter, a new fork of it kills the processes, because a kill by the guest would
    also end the interpreter.
    """
    if prestarted is not None:
        prestarted.prepare()
        return
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _empty(folder: int, room: list[int], depth: int) -> None:
    """Removes everything in the folder with the file descriptor `folder`. Raises Unfit if the folder has
    more than `depth` levels, or more than `room[0]` entries. Reduces `room[0]` by the number of removed
    entries."""
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
    """Returns the times of last access and last change of a folder, and the number of further files for which
    its file system has room.

    Together they show whether the folder's contents changed. A removed file still takes room while a file
    descriptor holds it open.
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
    """Returns the times of all entries directly in `folder`, except the paths `but`, as a dict: path ->
    (mtime, ctime) in nanoseconds."""
    paths = {f"{folder}/{name}" for name in os.listdir(folder)}.difference(but)
    found = {path: os.lstat(path) for path in paths}
    return {path: (status.st_mtime_ns, status.st_ctime_ns) for path, status in found.items()}


def _inode_flags(folder: int) -> bytes:
    """Returns the flags of a folder that the program `chattr` can set, or no bytes if the file system has no
    such flags."""
    try:
        return bytes(fcntl.ioctl(folder, FS_IOC_GETFLAGS, bytes(8)))
    except OSError:
        return b""


def _has_keyrings() -> bool:
    """Whether commands can use the kernel's keyrings. If so, the box cannot be reset, because a user's
    keyring outlives all the user's processes.

    Container engines usually forbid the system call for keyrings. If the processor type is unknown, the
    function returns true.
    """
    number = _KEYCTL.get(os.uname().machine)
    if number is None:
        return True
    libc = ctypes.CDLL(None, use_errno=True)
    user_keyring, get_id = -4, 0
    if libc.syscall(number, get_id, user_keyring, 0) >= 0:
        return True
    return ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS)
