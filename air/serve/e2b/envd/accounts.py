"""The account of a sandbox: who a client may name as the user of a command or a file."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass

from air.serve.e2b.errors import RpcError
from air.serve.e2b.sandbox import Sandbox

DEFAULT = "user"


@dataclass(frozen=True)
class Account:
    """One account of a sandbox."""

    name: str
    home: str

    def path(self, path: str) -> str:
        """Returns an absolute path: relative ones and `~` start at the home folder."""
        if path == "~" or path.startswith("~/"):
            path = self.home + path[1:]
        return posixpath.normpath(posixpath.join(self.home, path))


def account(sandbox: Sandbox, name: str) -> Account:
    """Returns the account with this name. Raises RpcError unless it is `user`, E2B's default account."""
    if name != DEFAULT:
        text = f"invalid username: '{name}': air runs everything in a sandbox as '{DEFAULT}'"
        raise RpcError("unauthenticated", text)
    return Account(name, sandbox.home)
