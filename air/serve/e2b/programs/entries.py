"""Describes files and folders of a sandbox in the form of envd, E2B's program in a sandbox. The helper
program `files` uses this module.

Runs in the sandbox's box (container): standard library only, Python >= 3.8, and no import of `air` except the
modules beside this file.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

META = "user.e2b."


def entry(path: str) -> dict[str, Any]:
    """Returns the description of a file or folder as a dict in (nearly) envd's form: its name, type, path,
    size, permissions, owner, group and modification time, and its metadata if it has any. Raises OSError if
    `path` does not exist."""
    status = os.lstat(path)
    kind, target = status.st_mode, None
    if stat.S_ISLNK(kind):
        target = os.path.realpath(path)
        try:
            kind = os.stat(path).st_mode
        except OSError:
            target = os.readlink(path)
    names = {stat.S_IFREG: "FILE", stat.S_IFDIR: "DIRECTORY", stat.S_IFLNK: "SYMLINK"}
    info = {
        "name": os.path.basename(path) or "/",
        "type": "FILE_TYPE_" + names.get(stat.S_IFMT(kind), "UNSPECIFIED"),
        "path": path,
        "size": str(status.st_size),
        "mode": stat.S_IMODE(status.st_mode),
        "permissions": stat.filemode(status.st_mode),
        "owner": name_of(pwd.getpwuid, status.st_uid),
        "group": name_of(grp.getgrgid, status.st_gid),
        "modified": status.st_mtime,
    }
    if target is not None:
        info["symlinkTarget"] = target
    metadata = metadata_of(path)
    return {**info, "metadata": metadata} if metadata else info


def name_of(look_up: Any, number: int) -> str:
    """Returns the name of the user or group with the id `number`, or the id as text if it has no name.
    `look_up` is `pwd.getpwuid` or `grp.getgrgid`."""
    try:
        return str(look_up(number)[0])
    except KeyError:
        return str(number)


def metadata_of(path: str) -> dict[str, str]:
    """Returns the metadata that a client stored with a file, as a dict that maps KEY to the value of the
    file's extended attribute `user.e2b.KEY`. Returns an empty dict if the attributes cannot be read."""
    try:
        names = [name for name in os.listxattr(path) if name.startswith(META)]
        return {
            name[len(META) :]: os.getxattr(path, name).decode("utf-8", "replace") for name in names
        }
    except OSError:  # a broken link, or a file system without them
        return {}
