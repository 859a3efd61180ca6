"""File locks that the processes of all users of this machine share. They lock GPUs and host slots. (A host
slot is the right to have one box on this machine; a box is an isolated place for commands, by default a
Docker container.)

Each lock is a file in the folder `AIR_LOCK_DIR` (default: `/run/lock/air`). A process holds a lock by
flock(2), so the kernel frees the lock when the process ends. A JSON line in the file describes the process
that holds the lock exclusively; it serves only for messages to people. The folder must be on a local disk. A
lock has no effect between processes that use different folders, or if somebody removes the lock's file while
a process holds the lock.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import pwd
import random
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from air import json_lines
from air.errors import ConfigError
from air.sandbox.contract import ownership

FOLDER_ENV = "AIR_LOCK_DIR"
FOLDER = Path("/run/lock/air")
SAY_SECONDS = 5.0
POLL_SECONDS = (0.05, 0.15)
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LOG = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True)
class Holder:
    """Describes the process that holds a lock: its process id, its user, and the id of its run of air. Read
    from the JSON line in the lock's file. `str()` gives a short description for messages."""

    pid: int
    user: str
    run: str

    def __str__(self) -> str:
        suffix = ", this process" if self.pid == os.getpid() else ""
        return f"pid {self.pid} ({self.user}, run {self.run}{suffix})"


class Lock:
    """A file lock that this process holds until `release` is called. Releasing twice is harmless."""

    def __init__(self, name: str, fd: int) -> None:
        self.name, self.fd, self._pid = name, fd, os.getpid()

    def release(self) -> None:
        """Frees the lock, even if a child process has inherited the file descriptor. If a forked child
        process calls this method, its parent keeps the lock."""
        if self.fd < 0:
            return
        fd, self.fd = self.fd, -1
        if os.getpid() == self._pid:  # a forked process that ends must not free its parent's lock
            fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def folder() -> Path:
    """Returns the folder that contains the lock files: `AIR_LOCK_DIR` if it is set, otherwise
    `/run/lock/air`."""
    return Path(os.environ.get(FOLDER_ENV) or FOLDER)


def acquire(*names: str, shared: bool = False, run: str = "") -> Lock | None:
    """Takes the first free lock among `names` and returns it. Returns None if all of them are in use. Never
    waits.

    Each name is the name of a file in the folder of locks. If `shared` is true, other processes may hold the
    lock shared at the same time, but not exclusively; otherwise no other process may hold it. `run` is the id
    of the run of air, which is written into the file of an exclusive lock; empty means the run of this
    process. This function, `holder`, `wanted`, `names` and `until` raise ConfigError if the folder of locks
    or a file in it cannot be used.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    with _folder() as at:
        for name in names:
            fd = _open(name, at)
            try:
                fcntl.flock(fd, kind | fcntl.LOCK_NB)
                if not shared:
                    _sign(fd, run)
                return Lock(name, fd)
            except BaseException as error:  # cancellation too: an open file would hold the lock
                os.close(fd)
                if not isinstance(error, BlockingIOError):
                    raise
    return None


def holder(name: str) -> Holder | None:
    """Returns the process that holds the lock `name` exclusively, or None if there is no such process."""
    return _look(name, fcntl.LOCK_SH)


def wanted(name: str) -> bool:
    """Whether any process holds the lock `name`, exclusively or shared. Used to see whether a process waits
    for something, because `until` holds a shared lock while it waits."""
    return _look(name, fcntl.LOCK_EX) is not None


def names(prefix: str) -> list[str]:
    """Returns the sorted names of all existing lock files whose name begins with `prefix`."""
    with _folder() as at:
        files = os.listdir(at)  # noqa: PTH208 — pathlib has no descriptors
        return sorted(name for name in files if name.startswith(prefix))


async def until(
    attempt: Callable[[], Awaitable[T | None]],
    *,
    marker: str,
    what: Callable[[], str],
    say_after: float = SAY_SECONDS,
) -> T:
    """Calls `attempt` several times a second until its result is not None, and returns that result.

    While waiting, this process holds the lock with the name `marker` shared, so that `wanted(marker)` is
    true in all processes. `what()` returns a text that says what is waited for. This text is logged after
    `say_after` seconds of waiting, and again each time the waiting time has doubled.
    """
    mark: Lock | None = None
    since = time.monotonic()
    try:
        if wanted(marker):  # other processes wait already: let them go first
            await asyncio.sleep(random.uniform(*POLL_SECONDS))
        while (result := await attempt()) is None:
            mark = mark or acquire(marker, shared=True)
            if time.monotonic() - since > say_after:
                _LOG.warning("waiting for %s", what())
                say_after *= 2
            await asyncio.sleep(random.uniform(*POLL_SECONDS))
        return result
    finally:
        if mark is not None:
            mark.release()


def _look(name: str, kind: int) -> Holder | None:
    """Tests whether this process could take the lock `name` in the way `kind`: LOCK_SH (shared) or LOCK_EX
    (exclusive). Returns None if it could, otherwise the process that the lock's file names. (While the lock
    is held shared, the file may name an earlier holder or nobody.)"""
    with _folder() as at:
        if (fd := _existing(name, at, os.O_RDONLY)) is None:
            return None
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return _parse(os.pread(fd, 1024, 0))
        else:
            return None
        finally:
            os.close(fd)


@contextmanager
def _folder() -> Iterator[int]:
    """Context manager: yields a file descriptor of the folder of locks. Creates the folder if it does not
    exist.

    In a new folder, all users may create files, but each may remove only their own (sticky bit).
    """
    path = folder()
    try:
        if not os.path.lexists(path):
            _make(path)
        at = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            yield at
        finally:
            os.close(at)
    except OSError as error:
        raise ConfigError(
            f"the folder of locks {path} cannot be used: {error.strerror or error}",
            where=FOLDER_ENV,
            remedy=f"set it to a folder that all users of this machine may write: "
            f"sudo mkdir -m 1777 {path}",
        ) from error


def _make(path: Path) -> None:
    """Creates the folder of locks. It is made under a temporary name and then renamed, so that it never
    exists without its permissions."""
    draft = Path(tempfile.mkdtemp(prefix=".air-", dir=path.parent))
    try:
        draft.chmod(0o1777)  # whatever the umask is
        (draft / ".air").touch()  # not empty, because a rename would replace an empty folder
        draft.rename(path)
    except OSError:
        shutil.rmtree(draft)
        if not path.is_dir():  # else another process made the folder first
            raise


def _open(name: str, at: int) -> int:
    """Opens the file of the lock `name` in the folder with the descriptor `at`, and returns its file
    descriptor. Creates the file if it does not exist.

    An existing file is opened without O_CREAT, because in a folder with the sticky bit the kernel may refuse
    O_CREAT for another user's file.
    """
    while (fd := _existing(name, at, os.O_RDWR)) is None:
        _create(name, at)
    return fd


def _existing(name: str, at: int, mode: int) -> int | None:
    """Opens the file of the lock `name` in the folder with the descriptor `at`, for reading or writing as
    `mode` (such as `O_RDONLY`) says. Returns its file descriptor, or None if the file does not exist."""
    try:
        fd = os.open(name, mode | _FILE, dir_fd=at)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable(name, error.strerror) from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise _unusable(name, "it is not a regular file")
    return fd


def _create(name: str, at: int) -> None:
    """Creates the file of the lock `name`. It is made under a temporary name and then linked, so that it
    never exists without its permissions."""
    draft = f".{name}.{secrets.token_hex(6)}"
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE, 0o600, dir_fd=at)
    try:
        os.fchmod(fd, 0o666)  # whatever the umask is
        os.link(draft, name, src_dir_fd=at, dst_dir_fd=at, follow_symlinks=False)
    except FileExistsError:
        pass  # another process made the file first
    finally:
        os.close(fd)
        os.unlink(draft, dir_fd=at)


def _unusable(name: str, reason: str | None) -> ConfigError:
    where = str(folder() / name)
    return ConfigError(f"this lock cannot be used: {reason}", where=where, remedy="remove it")


def _sign(fd: int, run: str) -> None:
    user = os.geteuid()
    try:
        name = pwd.getpwuid(user).pw_name
    except KeyError:
        name = str(user)
    fields = {"pid": os.getpid(), "user": name, "run": run or ownership.run_id()}
    line = json.dumps(fields).encode() + b"\n"
    os.pwrite(fd, line, 0)
    os.ftruncate(fd, len(line))


def _parse(text: bytes) -> Holder:
    """Returns the process that `text`, the contents of a lock's file, describes. The text may be invalid,
    because any user can write it; then the result is a `Holder` with unknown values."""
    try:
        fields = json_lines.decode(text.partition(b"\n")[0])
        pid, user, run = int(fields["pid"]), str(fields["user"]), str(fields["run"])
    except (ValueError, KeyError, TypeError, OverflowError):  # int() of 1e999 overflows
        return Holder(0, "unknown", "unknown")
    printable = ("".join(c if c.isprintable() else "?" for c in text)[:60] for text in (user, run))
    return Holder(pid, *printable)
