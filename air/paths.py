"""Where things lie: shipped folders, the user's cache, and a run's outputs."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from air.errors import MissingError

_PACKAGE = Path(__file__).resolve().parent


def shipped(name: str) -> Path:
    """The folder `tasks`, `configs` or `images`: beside the package in a checkout, in the wheel else."""
    beside = _PACKAGE.parent / name
    if (_PACKAGE.parent / "pyproject.toml").is_file() and beside.is_dir():
        return beside
    return _PACKAGE / "_shipped" / name


def cache() -> Path:
    """The cache folder: `AIR_CACHE`, else `$XDG_CACHE_HOME/air`, else `~/.cache/air`. Not created.

    Raises:
        MissingError: this user has no home folder.
    """
    given = os.environ.get("AIR_CACHE")
    try:
        if given:
            return Path(given).expanduser()
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "air"
    except RuntimeError as error:
        remedy = "set AIR_CACHE to a folder for caches"
        raise MissingError("this user has no home folder", remedy=remedy) from error


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock of that file, between processes, while the block runs; waits for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
