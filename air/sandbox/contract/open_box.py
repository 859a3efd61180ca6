"""`OpenBox`: the settings of a box whose commands may use all of it, and other users."""

from __future__ import annotations

import posixpath
import re

from pydantic import model_validator

from air.config import BaseConfig

USER, WORKSPACE = "user", "/home/user"
"""The user and the workspace of an open box whose settings name none and that keeps no files."""
_SYSTEM = {
    *("proc", "sys", "dev", "etc", "usr", "bin", "sbin", "lib", "lib64", "tmp", ".air", "var")
}
_KERNEL = {"proc", "sys", "dev", ".air"}


class OpenBox(BaseConfig):
    """Settings of a container that is a machine of its own for its commands: an open box.

    Commands and file operations may name any user, and reach every path. Root has no capability that reaches
    out of the container; programs such as `sudo` give no rights. The workspace has the size `disk_mb`. What
    is written elsewhere lies on the engine's disk, where no engine that air supports bounds it.
    """

    user: str = ""
    """The user of commands and files that name none. Empty: `user`, or with `keep` the user of the image. A
    user whom the image lacks is added to the box, or with `keep` refused."""
    workspace: str = ""
    """The absolute path of the workspace. Empty: `/home/user`, or with `keep` the image's working directory.
    The workspace begins empty, unless `keep` is set."""
    keep: bool = False
    """Whether the workspace keeps the image's files and may be any folder, also `/`. It is then an ordinary
    folder of the container, and so is `/tmp`; the variables of the image hold for commands. If the files that
    commands write take more than `disk_mb`, the box is ended. Such a box has no snapshots."""

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
