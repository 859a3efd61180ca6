"""What one worker of pytest-xdist makes and all of them use."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def shared(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that `make` fills: by the first worker that asks for it; the others wait.

    Args:
        name: the folder's, the same in every worker.
        make: fills the folder, which is empty. Nothing may be changed in it later.
    """
    base = factory.getbasetemp()
    root = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, done = root / f"shared-{name}", root / f"shared-{name}.done"
    with (root / f"shared-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            folder.mkdir()  # FileExistsError: an earlier attempt failed; its error says why
            make(folder)
            done.touch()
    return folder


def cache(factory: pytest.TempPathFactory) -> Path:
    """A new folder for `AIR_CACHE`. All such folders have one folder of prepared data: each shipped task's is
    made once in a test run. A changed task's has another name."""
    folder = factory.mktemp("cache")
    (folder / "data").symlink_to(shared(factory, "data", lambda _: None))
    return folder
