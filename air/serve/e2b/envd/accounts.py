"""Looks up the user accounts in a sandbox's box (container). E2B's clients choose the account with which they
run commands and access files."""

from __future__ import annotations

from dataclasses import dataclass

from air.errors import BoxFileError
from air.serve.e2b.errors import RpcError
from air.serve.e2b.programs.paths import absolute
from air.serve.e2b.sandbox import Sandbox

DEFAULT = "user"


@dataclass(frozen=True)
class Account:
    """One user account from `/etc/passwd` in a sandbox's box (container): its name and its home folder."""

    name: str
    home: str

    def path(self, path: str) -> str:
        """Converts `path`, a path in a client's request, to an absolute path (see `absolute`)."""
        return absolute(path, self.home)


async def account(sandbox: Sandbox, name: str) -> Account:
    """Looks up the account called `name` in the sandbox's box (container). Raises RpcError if there is no
    such account.

    `user` is the default account of E2B's clients. If the image has no account `user`, this name stands for
    the account with the user id 1000; if there is none either, for root.
    """
    try:
        data = await sandbox.running_box.read("/etc/passwd", user="root", max_bytes=1 << 20)
        text = data.decode("utf-8", "replace")
    except BoxFileError as error:
        raise RpcError("internal", f"the image has no accounts: {error}") from error
    accounts = [fields for line in text.splitlines() if len(fields := line.split(":")) == 7]
    by_name = {fields[0]: fields for fields in accounts}
    found = by_name.get(name)
    if found is None and name == DEFAULT:
        found = next((fields for fields in accounts if fields[2] == "1000"), by_name.get("root"))
    if found is None:
        raise RpcError("unauthenticated", f"invalid username: '{name}'")
    return Account(found[0], found[5] or "/")
