"""Where things lie: shipped folders, the user's cache, and a run's outputs."""

from __future__ import annotations

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def shipped(name: str) -> Path:
    """The folder `tasks`, `configs` or `images`: beside the package in a checkout, in the wheel else."""
    beside = _PACKAGE.parent / name
    if (_PACKAGE.parent / "pyproject.toml").is_file() and beside.is_dir():
        return beside
    return _PACKAGE / "_shipped" / name


def cache() -> Path:
    """The cache folder: `AIR_CACHE`, else `$XDG_CACHE_HOME/air`, else `~/.cache/air`. Not created."""
    if given := os.environ.get("AIR_CACHE"):
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "air"
