"""Finds the folders that come with air and the user's cache folder, and names air's programs as the user's
shell can start them; also locks files, and writes files atomically."""

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
    """Returns the path of one of the folders that come with air; `name` is `tasks`, `configs` or `images`. In
    a git checkout the folder is beside the package `air`; in an installed wheel it is inside the package."""
    beside = _PACKAGE.parent / name
    if (_PACKAGE.parent / "pyproject.toml").is_file() and beside.is_dir():
        return beside
    return _PACKAGE / "_shipped" / name


def cache() -> Path:
    """Returns the path of the user's cache folder, without creating the folder. The path is `$AIR_CACHE`; if
    this variable is not set, it is `$XDG_CACHE_HOME/air`, or else `~/.cache/air`. Raises MissingError if the
    user has no home folder."""
    setting = os.environ.get("AIR_CACHE")
    try:
        if setting:
            return Path(setting).expanduser()
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "air"
    except RuntimeError as error:
        remedy = "set AIR_CACHE to a folder for caches"
        raise MissingError("this user has no home folder", remedy=remedy) from error


def command(name: str = "air") -> str:
    """Returns the text that a user must type in the current folder to start a program of this Python
    installation. `name` is `air`, `rl` or `sft`. The text is the name if the `PATH` leads to this program,
    else the program's path."""
    program = Path(sys.executable).with_name(name)
    if not program.is_file() or shutil.which(name) == str(program):
        return name
    below = program.is_relative_to(Path.cwd())
    return shlex.quote(str(program.relative_to(Path.cwd()) if below else program))


def runnable(text: str) -> str:
    """Makes the commands in a message (`air …` between backticks) runnable as printed: if `air` on the `PATH`
    is not this installation's program, replaces `air` in them by the path of this program. Returns the
    message."""
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


_UNFINISHED = ".new-"
"""How the names of files begin that `write_whole` has not finished."""


def is_unfinished(path: Path) -> bool:
    """Returns whether the file at `path` is one that `write_whole` has not finished, for example because its
    process was killed."""
    return path.name.startswith(_UNFINISHED)


def write_whole(target: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Writes a file atomically: other processes see the old file or the whole new one, never a part of it.
    Creates the file's folder if necessary. `mode` is the file's permissions before the umask."""
    target.parent.mkdir(parents=True, exist_ok=True)
    new = target.with_name(
        f"{_UNFINISHED}{os.urandom(8).hex()}"
    )  # `tempfile` would let only its user read it
    try:
        new.touch(mode)
        new.write_bytes(data)
        new.replace(target)
    except BaseException:  # cancellation too: no half-written file is left
        new.unlink(missing_ok=True)
        raise
