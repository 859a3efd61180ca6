"""What boxes tell about files: `FileInfo` describes an entry of a folder, `FileChange` an event in a folder,
`Change` a difference from the image, and `BoxFile` is an entry with its contents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["file", "folder", "other"]


@dataclass(frozen=True)
class FileInfo:
    """One file, folder or link in a box."""

    path: str
    """Its absolute path, as it was asked for: links in it are not resolved."""
    kind: Kind
    """What it is; for a link what it leads to, and `other` if it leads nowhere."""
    size: int
    """Its size in bytes."""
    mode: int
    """Its permission bits, such as 0o644."""
    uid: int
    gid: int
    owner: str
    """The name of its owner in the box, or the number if it has no name."""
    group: str
    """The name of its group in the box, or the number if it has no name."""
    modified: float
    """When it was last changed, in epoch seconds."""
    link: str = ""
    """If it is a link, the path that it contains; else empty."""

    @property
    def name(self) -> str:
        """The last component of the path."""
        return self.path.rstrip("/").rpartition("/")[2]


@dataclass(frozen=True)
class FileChange:
    """One change of an entry in a folder that `Box.watch` observes."""

    kind: Literal["create", "write", "remove", "rename", "mode"]
    """`rename` names the old path; the new one is a `create`."""
    path: str
    """The path of the entry relative to the observed folder."""


@dataclass(frozen=True)
class Change:
    """A path of a box that is not as it is in the box's image (`Box.changed`)."""

    path: str
    """The absolute path, without links."""
    kind: Literal["added", "changed", "deleted"]
    """If a folder was deleted and made anew, it is `deleted` itself and what it now holds is `added`, or all
    that it held is compared with what it now holds: that depends on the container engine."""


@dataclass(frozen=True)
class BoxFile:
    """A file, folder, link or other entry of a box, with the contents of a file (`Box.gather`)."""

    path: str
    """Its path, as it was asked for or found in a folder."""
    kind: Literal["file", "folder", "link", "other"]
    """What it is. Links are not followed; devices, pipes and sockets are `other`."""
    mode: int
    """Its permission bits, such as 0o644."""
    uid: int
    gid: int
    data: bytes = b""
    """The contents of a file."""
    link: str = ""
    """The path that a link contains."""
