"""Types that describe files of a box. `FileInfo` describes an entry of a folder, `Change` a difference from
the image, and `BoxFile` an entry with its contents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["file", "folder", "other"]


@dataclass(frozen=True)
class FileInfo:
    """One file, folder or link in a box."""

    path: str
    """The entry's path: the path that the caller gave or, for an entry of a listed folder, the folder's path
    as the caller gave it and the entry's path below it. Links in the path are not resolved."""
    kind: Kind
    """`file`, `folder`, or `other` (such as a device or a pipe). A link has the kind of its target, or
    `other` if the target does not exist."""
    size: int
    """The entry's size in bytes."""
    mode: int
    """The entry's permission bits, such as 0o644."""
    uid: int
    gid: int
    owner: str
    """The name of the entry's owner in the box, or the user id if the owner has no name."""
    group: str
    """The name of the entry's group in the box, or the group id if the group has no name."""
    modified: float
    """The time of the last change of the entry's contents (mtime), in epoch seconds."""
    link: str = ""
    """The target path that a link contains; empty if the entry is no link."""

    @property
    def name(self) -> str:
        """The last component of the path."""
        return self.path.rstrip("/").rpartition("/")[2]


@dataclass(frozen=True)
class Change:
    """A path in a box that differs from the box's image; see `Box.changed`."""

    path: str
    """The absolute path, without links."""
    kind: Literal["added", "changed", "deleted"]
    """How the path differs from the image: `added`, `changed` or `deleted`. If a folder was deleted and made
    again, the container engine decides which differences it reports: a `deleted` folder with `added`
    contents, or only the differences between the old and the new contents."""


@dataclass(frozen=True)
class BoxFile:
    """An entry of a box (file, folder, link or other) with its contents; see `Box.gather`."""

    path: str
    """The entry's path: the path that the caller gave to `Box.gather` or, for an entry inside a folder that
    was read as a whole, the folder's path and the entry's path below it."""
    kind: Literal["file", "folder", "link", "other"]
    """`file`, `folder`, `link`, or `other` (devices, pipes and sockets). A link always has the kind `link`,
    whatever its target is."""
    mode: int
    """The entry's permission bits, such as 0o644."""
    uid: int
    gid: int
    data: bytes = b""
    """The contents of a file; empty for other entries."""
    link: str = ""
    """The target path that a link contains; empty for other entries."""
