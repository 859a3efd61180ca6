"""Creates the folder of a new task by copying a template: a small working task that the author then
changes."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from air import paths
from air.errors import ConfigError, boundary
from air.tasks.files import walk

TEMPLATE = "_template/files"
"""The path of the template, relative to the folder of the tasks that ship with air. It is one folder deeper
than a task, so that the template is not listed as a task."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


def make(name: str, root: Path) -> Path:
    """Makes a new task's folder `root/name` from the template; if this fails, no folder is left.

    Raises ConfigError if `name` is invalid or already taken, or the folder cannot be written.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is no task name: up to 64 letters, digits, - and _, a letter first",
            where="air tasks new",
            remedy="choose another name",
        )
    template = paths.shipped("tasks") / TEMPLATE
    root = root.expanduser()
    folder = root / name
    if folder.exists() or folder.is_symlink():
        raise ConfigError(f"there is a {folder} already", remedy="choose another name")
    with boundary(ConfigError, f"air tasks new: {folder} cannot be made", OSError):
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root, prefix=".new-") as place:
            made = Path(place) / name
            for file in walk(template):
                target = made / file.relative_to(template)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(file.read_text(encoding="utf-8").replace("NAME", name))
            made.rename(folder)
    return folder
