"""Lists, hashes and copies the files of a task. Ignores files in folders named `__pycache__`."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path


def folder_hash(folder: Path) -> str:
    """Returns the SHA-256, in hex, of the names and contents of all files in a folder that `walk` yields (all
    but those in `__pycache__`)."""
    digest = hashlib.sha256()
    for file in walk(folder):
        data = file.read_bytes()
        name = file.relative_to(folder).as_posix().encode()
        digest.update(b"%d %s %d\n" % (len(name), name, len(data)) + data)
    return digest.hexdigest()


def walk(folder: Path) -> Iterator[Path]:
    """Yields the paths of all files below a folder at any depth, in a fixed order. Skips `__pycache__`
    folders."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path


def copy_file(source: Path, target: Path) -> None:
    """Copies a file and makes the copy readable for everyone, and executable if the source is."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755 if os.access(source, os.X_OK) else 0o644)
