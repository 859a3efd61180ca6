"""Records when images were last used, and which images were pulled for tasks. `air.sandbox.images.cleanup`
reads these records, which are files in the user's cache folder, to find images that can be removed."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from air import paths
from air.errors import MissingError

_USED, _PULLED = "used", "pulled"


def note_use(image_id: str) -> None:
    """Records that a box starts from an image now. `image_id` is the container engine's id of the image. If
    the record cannot be written, or the user has no home folder, does nothing, so the image may later seem
    unused."""
    with contextlib.suppress(OSError, MissingError):
        _touch(_folder(_USED) / image_id.removeprefix("sha256:"))


def last_use(image_id: str) -> float:
    """Returns the time in epoch seconds when a box last started from an image; 0 if no start is recorded.
    `image_id` is the container engine's id of the image."""
    try:
        return (_folder(_USED) / image_id.removeprefix("sha256:")).stat().st_mtime
    except OSError:
        return 0.0


def note_pulled(tag: str) -> None:
    """Records that an image was pulled for a task. `tag` is the image's tag."""
    file = _folder(_PULLED) / str(time.time_ns())
    paths.write_whole(file, tag.encode())


def pulled() -> set[str]:
    """Returns the tags of images that were pulled for tasks."""
    folder = _folder(_PULLED)
    return {file.read_text("utf-8") for file in folder.iterdir()} if folder.is_dir() else set()


def _touch(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()


def _folder(name: str) -> Path:
    return paths.cache() / "images" / name
