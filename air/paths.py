"""Returns the paths of the folders that ship with air and of the user's cache folder; locks and writes
files."""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from air.errors import MissingError, UsageError, boundary

_PACKAGE = Path(__file__).resolve().parent


def shipped(name: str) -> Path:
    """Returns the path of a folder that comes with air: `tasks`, `configs` or `images`.
    In a git checkout the folder is beside the package `air`; in an installed wheel it is inside."""
    beside = _PACKAGE.parent / name
    if (_PACKAGE.parent / "pyproject.toml").is_file() and beside.is_dir():
        return beside
    return _PACKAGE / "_shipped" / name


def cache() -> Path:
    """Returns the path of the user's cache folder, without creating the folder. It is `$AIR_CACHE` or, if
    this variable is not set, `$XDG_CACHE_HOME/air` or `~/.cache/air`. Raises MissingError without a home
    folder."""
    setting = os.environ.get("AIR_CACHE")
    try:
        if setting:
            return Path(setting).expanduser()
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "air"
    except RuntimeError as error:
        remedy = "set AIR_CACHE to a folder for caches"
        raise MissingError("this user has no home folder", remedy=remedy) from error


def command(name: str = "air") -> str:
    """Returns the text with which a shell in the current folder starts `air`, `rl` or `sft` of this Python
    installation: the name if the shell's `PATH` finds this program, else its path."""
    program = Path(sys.executable).with_name(name)
    if not program.is_file() or shutil.which(name) == str(program):
        return name
    below = program.is_relative_to(Path.cwd())
    return shlex.quote(str(program.relative_to(Path.cwd()) if below else program))


def runnable(text: str) -> str:
    """Replaces `air` in the commands of a message (`air …` between backticks) by the path of this
    installation's program, if `air` is not on the `PATH`. So the user can run the commands as printed."""
    return text.replace("`air ", f"`{command()} ")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Context manager: while the `with` block runs, no other process can lock the file `path`.
    Waits until the file is free. Creates the file and its folder if necessary. Yields no value. Raises
    UsageError if the file cannot be locked."""
    with ExitStack() as stack:
        with boundary(UsageError, f"cannot lock {path}", OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            fcntl.flock(stack.enter_context(path.open("a")), fcntl.LOCK_EX)
        yield


def write_whole(target: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Writes a file atomically: other processes see the old file or the whole new one, never a part of it.
    Creates the file's folder if necessary. `mode` is the file's permissions before the umask."""
    target.parent.mkdir(parents=True, exist_ok=True)
    new = target.with_name(
        f".new-{os.urandom(8).hex()}"
    )  # `tempfile` would let only its user read it
    try:
        new.touch(mode)
        new.write_bytes(data)
        new.replace(target)
    except BaseException:  # cancellation too: no half-written file is left
        new.unlink(missing_ok=True)
        raise
