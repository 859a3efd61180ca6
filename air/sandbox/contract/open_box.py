"""`OpenBox`: the settings of a box whose commands may use all of it, and other users."""

from __future__ import annotations

import posixpath
import re

from pydantic import model_validator

from air.config import BaseConfig

_SYSTEM = {
    *("proc", "sys", "dev", "etc", "usr", "bin", "sbin", "lib", "lib64", "tmp", ".air", "var")
}


class OpenBox(BaseConfig):
    """Settings of a container that is a machine of its own for its commands: an open box.

    Commands and file operations may name any user, and reach every path. Root has no capability that reaches
    out of the container; programs such as `sudo` give no rights. The workspace has the size `disk_mb`. What
    is written elsewhere lies on the engine's disk, where no engine that air supports bounds it.
    """

    user: str = "user"
    """The user of commands and files that name none. A user whom the image lacks is added to the box."""
    workspace: str = "/home/user"
    """The absolute path of the workspace, which begins empty: only it is part of a snapshot."""

    @model_validator(mode="after")
    def _usable(self) -> OpenBox:
        if posixpath.normpath(self.workspace) != self.workspace or self.workspace.count("/") < 1:
            raise ValueError(f"workspace: {self.workspace!r} is not an absolute path")
        if self.workspace in ("/", "//") or self.workspace.split("/")[1] in _SYSTEM:
            raise ValueError(f"workspace: {self.workspace!r} is a folder of the system")
        if not re.fullmatch(r"[a-z_][a-z0-9_-]{0,31}", self.user):
            raise ValueError(f"user: {self.user!r} is not the name of a user")
        return self
