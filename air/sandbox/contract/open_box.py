"""`OpenBox`: the settings of an open box, whose commands may use the whole container and run as several
users."""

from __future__ import annotations

import posixpath
import re

from pydantic import model_validator

from air.config import BaseConfig

USER, WORKSPACE = "user", "/home/user"
"""The default user and workspace of an open box (a container that its commands may use as a whole) without
`OpenBox.keep`."""
_SYSTEM = {
    *("proc", "sys", "dev", "etc", "usr", "bin", "sbin", "lib", "lib64", "tmp", ".air", "var")
}
_KERNEL = {"proc", "sys", "dev", ".air"}


class OpenBox(BaseConfig):
    """Settings of an open box: a container that its commands may use like a machine of their own.

    Commands and file operations may run as any user of the box, and reach every path. Root has no capability
    that reaches out of the container, and programs such as `sudo` give no rights. The workspace has the size
    `BoxLimits.disk_mb`. Files outside of the workspace lie on the container engine's disk, and no engine that
    air supports limits their size.
    """

    user: str = ""
    """The name of the user of those commands and file operations that name no user themselves. Empty means
    the user called `user` or, if the field `keep` is true, the user that the image sets. If the image has no
    user with this name, the user is added to the box or, if `keep` is true, the start fails."""
    workspace: str = ""
    """The absolute path of the workspace. Empty means `/home/user` or, if the field `keep` is true, the
    image's working directory. If `keep` is false, the workspace begins empty."""
    keep: bool = False
    """Whether the workspace begins with the files that the image has there. If true, the workspace may be any
    folder, also `/`; the workspace and `/tmp` are ordinary folders of the container; and commands get the
    image's environment variables. If the files that commands write take more than `BoxLimits.disk_mb`
    together, the box is ended. Such a box has no snapshots."""

    @model_validator(mode="after")
    def _usable(self) -> OpenBox:
        path = self.workspace
        if path and (not path.startswith("/") or path == "//" or posixpath.normpath(path) != path):
            raise ValueError(f"workspace: {path!r} is not an absolute path")
        if path and path.split("/")[1] in (_KERNEL if self.keep else _SYSTEM | {""}):
            raise ValueError(f"workspace: {path!r} is a folder of the system")
        users = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}" if self.keep else r"[a-z_][a-z0-9_-]{0,31}"
        if self.user and not re.fullmatch(users, self.user):
            raise ValueError(f"user: {self.user!r} is not the name of a user")
        return self
