"""The part of the guest (air's program inside a box) that resets a box to the state of a new box, so that it
serves one caller after another. A box is an isolated place for commands, here a container.

Only closed boxes are reset. Their commands are never root and have neither network nor GPUs, so they can
change only little: processes, the files in a few folders in memory, System V and POSIX objects such as
message queues and semaphores, and the loopback network. A reset removes the files. It repairs nothing else:
it compares the rest, also the list of processes, with the state of the new box. Only counters of the kernel,
such as the next process id, are not compared. The box becomes "unfit" (it can never be reset again) if the
comparison finds a difference, if a command was killed or left a process that holds its output open, or if the
air process that started the box sent a request other than those in `USUAL`.

Standard library only, Python >= 3.8. The guest loads `air.sandbox.reuse.prestarted_python` before this
module.
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

from air.sandbox.guest.files import Refused
from air.sandbox.reuse.prestarted_python import NotPrestarted, Prestarted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from air.sandbox.guest.main import Guest
    from air.sandbox.guest.running_commands import Command
    from air.sandbox.guest.spawn import Starter

USUAL = {
    *("abort", "beat", "continue", "exec", "get", "kill"),
    *("lease", "mkdir", "reset", "stop", "write"),
}
"""The kinds of requests to the guest (air's program in the box) after which a box can still be reset for
another caller, because the reset can undo or detect all their effects."""
IDLE = {"abort", "beat", "end", "kill", "lease"}
"""The kinds of requests that may reach a box that waits for its next caller. They change nothing in it, or
end its processes (`end`), after which it is not used again. `lease` is the first request of a caller."""
SETTLE_SECONDS, PAUSE = 0.25, 0.001
"""Two times in seconds. Some things disappear by themselves, such as a process whose parent has ended. A
reset waits for them for at most `SETTLE_SECONDS`, and looks again after each `PAUSE`."""
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
    """Raised if the box cannot be reset to the state of a new box. The text of the error is the reason."""


class Reuse:
    """Resets a box to the state of a new box for the next caller, and records everything that makes a reset
    impossible.

    `config` has the key `folders` (the folders in memory that commands can write). If it also has the key
    `prestart`, a Python interpreter is started in advance (see `Prestarted`), and this process (the guest,
    air's program in the box) exits if that fails. `starter` starts the commands.
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
        self.handed_back = False
        """Whether the box was reset after a command that was said to be its caller's last. Until the next
        caller gets the box, requests that could change it are refused, because no reset follows them."""
        self.due: int | None = None
        """The id of a reset that begins as soon as the last command's result is sent; None if there is
        none."""
        self.strays = 0
        """The number of processes that ended after the last reset began to kill processes, although the guest
        (air's program in the box) had not started them. If it is not 0, a process was hidden from the list of
        processes."""
        self.opened: dict[str, int] = {}
        """The open file descriptors of the writable folders and of the kernel's tables, by path."""
        self.new: dict[str, tuple[int, int, int]] = {}
        """The result of `_contents` for each folder when the box was new: the times of last access and last
        modification, and the number of free inodes in its file system."""
        self.state: dict[str, Any] = {}

    def saw_request(self, header: dict[str, Any]) -> None:
        """Called for each request to the guest (air's program in the box), with the request's `header`. Marks
        the box as not resettable if a reset cannot undo the effects of this kind of request. Raises Refused
        if the box waits for its next caller, and the request could change it."""
        if self.handed_back and header["op"] not in IDLE:
            raise Refused("the box has had its last command")
        if header["op"] == "lease":
            self.handed_back = False
        if header["op"] not in USUAL or header.get("user"):
            self.reason = self.reason or f"it was used for {header['op']!r}"

    def saw_end(self, command: Command) -> None:
        """Called when a command has ended. Marks the box as not resettable if the command exceeded its
        timeout, was cancelled or killed, or left a process that holds the command's output open."""
        if command.timed_out or command.cancelled:
            self.reason = self.reason or "a command was stopped"
        elif command.status is None or command.status & 0x7F == signal.SIGKILL:
            self.reason = self.reason or "a command was killed"
        elif command.open:
            self.reason = self.reason or "a process kept the output of its command"

    def begin(self, guest: Guest) -> None:
        """Records the state of the new box, with which each reset compares the state of the box. If a Python
        interpreter was started in advance, makes its first fork, which waits for a command. `guest` is the
        object that handles the requests to the box. No command may run before this call."""
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
        """Handles an epoll event if the file descriptor `fd` is the socket to the interpreter that was
        started in advance, and then returns true. Returns false for any other `fd`."""
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
        """Records that a command was killed: the command that ran in the process `pid`, a fork of the Python
        interpreter that was started in advance. Does nothing if the fork still runs, or its exit status is
        known.

        Normally the interpreter collects the exit status of its fork, and reports it to the guest, air's
        program in the box. The status is lost if a timeout kills the fork and then the interpreter between
        these two steps.
        """
        self.guest.reap()  # the guest becomes the parent of a fork that the Python has not reaped
        for command in self.guest.commands.values():
            if command.pid == pid and command.status is None and pid not in _pids():
                command.status = int(signal.SIGKILL)

    def reset_after(self, ident: int) -> None:
        """Resets the box after its last command, as a request `reset` with the id `ident` would do. So the
        host need not send this request."""
        self.due, self.handed_back = ident, True
        self.guest.outbox.flush()
        self.reset_when_sent()

    def reset_when_sent(self) -> None:
        """Does the reset that is due, if there is one and the host has the command's result. Until then the
        box could be ended without the result being lost."""
        if self.due is None or self.guest.outbox.frames:
            return
        ident, self.due = self.due, None
        self.handed_back = False
        self.guest.handle({"op": "reset", "id": ident}, b"")
        self.handed_back = True
        self.guest.outbox.flush()

    def reset(self, *_frame: object) -> dict[str, Any]:
        """Handles a `reset` request: restores the box to the state of a new box. Returns the answer
        `{"reason": text}`: the reason why the box cannot be reset, or "" after success."""
        try:
            if self.reason or self.guest.commands or self.guest.pipes:
                raise Unfit(self.reason or "a command has not ended")
            if self.guest.freezer.before is not None:
                raise Unfit("its processes are stopped")
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
        """Returns the pids of air's own processes in the box: the guest (air's program in the box) and, if a
        Python interpreter was started in advance, the interpreter and its fork."""
        ready = self.prestarted
        return {self.guest.me} | ({ready.pid, ready.fork_pid} - {0} if ready else set())

    def _check_processes(self) -> None:
        """Raises Unfit if the box has processes other than air's own (the guest, which is air's program in
        the box, and perhaps a Python interpreter with its fork), and they do not end within `SETTLE_SECONDS`
        seconds."""
        mine = self._own_pids()

        def problem() -> str | None:
            self.guest.reap()  # otherwise a dead child would still be listed
            return None if _pids() == mine else "processes remained"

        self._settle(problem)

    def _check_swept(self) -> None:
        """Raises Unfit if a process was hidden from the list of processes that `_check_processes` read.
        Called after all processes except air's own were killed.

        By now no process is left that could start another one, so a new list of processes is complete. The
        guest, air's program in the box, counts hidden processes when it reaps them, because orphans become
        its children.
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
        """Returns a description of the box's state. A reset compares it with the description of the new box:
        if both are equal, commands have left nothing behind."""
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
        """Returns the first `TABLE_BYTES` bytes of the kernel's table `path`, or `b""` if the kernel has no
        such table. This suffices for a comparison, because the whole table of a new box is shorter."""
        fd = self.opened.get(path)
        return b"" if fd is None else os.pread(fd, TABLE_BYTES, 0)

    def _settle(self, problem: Callable[[], str | None]) -> None:
        """Calls `problem` repeatedly until it returns None. It returns a text while something is wrong. If it
        still does after `SETTLE_SECONDS` seconds, raises Unfit with that text."""
        until = time.monotonic() + SETTLE_SECONDS
        while (text := problem()) is not None:
            if time.monotonic() > until:
                raise Unfit(text)
            time.sleep(PAUSE)


def sweep(prestarted: Prestarted | None) -> None:
    """Kills all processes of the box at once, except this process (the guest, air's program in the box) and
    the Python interpreter that was started in advance, if there is one.

    With such an interpreter, a new fork of it kills the processes as their own Unix user. The guest cannot do
    that, because its signal would also end the interpreter.
    """
    if prestarted is not None:
        prestarted.prepare()
        return
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _empty(folder: int, room: list[int], depth: int) -> None:
    """Removes everything in the folder with the file descriptor `folder`. Raises Unfit if the folder has more
    than `depth` levels, or more than `room[0]` entries on all levels together. `room[0]` is reduced by 1 for
    each removed entry."""
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
    """Returns a folder's time of last access and of last modification, in nanoseconds, and the number of free
    inodes in its file system.

    Together they show whether the folder's contents changed. A removed file still occupies an inode while a
    process holds it open.
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
    """Returns the times of the entries directly in `folder`, as a dict: path -> (mtime, ctime) in
    nanoseconds. Leaves out the paths in `but`."""
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
