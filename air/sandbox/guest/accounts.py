"""The users of an open box (a box whose commands may run as several users): reads them from the box's files
/etc/passwd and /etc/group, and lets the guest (air's program in the box) act with their rights.

The guest parses these files itself, because Python's modules for this load libraries that commands of an open
box may have replaced. Standard library only, Python >= 3.8, no import of `air`.
"""

# ruff: noqa: PTH101, PTH102, PTH112, PTH116, PTH120
from __future__ import annotations

import os
import stat

from air.sandbox.guest.files import Refused
from air.sandbox.guest.users import ROOTS, become_guest, open_files_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from air.sandbox.guest.files import AnswerFrames

PASSWD, GROUP = "/etc/passwd", "/etc/group"
MOST_BYTES = 1 << 20
FIRST_UID = 1000


class Account:
    """A user of the box: user id, group id, further group ids, and home folder."""

    def __init__(self, name: str, uid: int, gid: int, home: str) -> None:
        self.name, self.uid, self.gid, self.home = name, uid, gid, home
        rows = _rows(GROUP, 4)
        self.groups = [int(row[2]) for row in rows if name in row[3].split(",") and _is_id(row[2])]


def find(name: str) -> Account:
    """Returns the user with this name or number, such as `me` or `0`. In the form `me:staff`, `staff` becomes
    the user's group, and the user has no further groups.

    Raises Refused if the user or the group is unknown. A number is accepted even if /etc/passwd or /etc/group
    does not list it.
    """
    name, _, group = name.partition(":")
    account = _find(name)
    if group:
        account.gid, account.groups = _group(group), []
    return account


def _find(name: str) -> Account:
    name = "0" if name == "root" else name  # even if commands have changed the table
    for row in _rows(PASSWD, 7):
        if name in (row[0], row[2]) and _is_id(row[2]) and _is_id(row[3]):
            return Account(row[0], int(row[2]), int(row[3]), row[5] or "/")
    if _is_id(name):
        return Account(name, int(name), 0 if name == "0" else int(name), "/")
    raise Refused(f"the box has no user {name!r}")


def _group(name: str) -> int:
    for row in _rows(GROUP, 4):
        if name in (row[0], row[2]) and _is_id(row[2]):
            return int(row[2])
    if _is_id(name):
        return int(name)
    raise Refused(f"the box has no group {name!r}")


def ensure(name: str, home: str) -> Account:
    """Returns the user `name`. If the box has no such user, adds the user to the box, with the home folder
    `home`."""
    try:
        return find(name)
    except Refused:
        uids = {row[2] for row in (*_rows(PASSWD, 7), *_rows(GROUP, 4))}
        uid = next(uid for uid in range(FIRST_UID, 60_000) if str(uid) not in uids)
        shell = "/bin/bash" if os.access("/bin/bash", os.X_OK) else "/bin/sh"
        _append(PASSWD, f"{name}:x:{uid}:{uid}::{home}:{shell}\n")
        _append(GROUP, f"{name}:x:{uid}:\n")
        return find(name)


def names() -> tuple[dict[int, str], dict[int, str]]:
    """Returns the names of all users and groups of the box as two dicts: user id -> user name, and group id
    -> group name."""
    users = {int(row[2]): row[0] for row in _rows(PASSWD, 7) if _is_id(row[2])}
    groups = {int(row[2]): row[0] for row in _rows(GROUP, 4) if _is_id(row[2])}
    return users, groups


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 10 and int(text) < 1 << 31


def _rows(path: str, fields: int) -> Iterator[list[str]]:
    """Yields the lines of the table in the file `path`, such as /etc/passwd, split at colons. Skips lines
    that do not have exactly `fields` fields. Yields nothing if the file is missing or not a regular file:
    commands may have replaced it, for example by a pipe."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        data = os.read(fd, MOST_BYTES) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    finally:
        os.close(fd)
    for line in data.decode("utf-8", "replace").splitlines():
        row = line.split(":")
        if len(row) == fields:
            yield row


def _append(path: str, line: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, line.encode())
    finally:
        os.close(fd)


class Rights:
    """Gives the guest (air's program in a box) the file access rights of one user of an open box after
    another. Before each request, the guest takes over the rights of the user whom the request names."""

    def __init__(self, user: str, folders: list[str], keep: bool) -> None:
        """Finds or adds the box's default user, prepares the `folders` (workspace first), and turns this
        process, which is root, into the guest (air's program in the box).

        `user` is the name of the default user. If `keep` is true, this user must exist in the image or be a
        number, and the image's workspace and /tmp are not changed.
        """
        _preload()
        self.user = user
        self.account = find(user) if keep else ensure(user, folders[0])
        self.made: list[str] = []
        """The folders that the guest (this process) created because the image did not have them."""
        if keep:
            self.made += [*_laid(folders[0], 0o755, self.account), *_laid("/tmp", 0o1777, None)]
        for folder in folders[1:] if keep else folders:
            os.chown(folder, self.account.uid, self.account.gid)
        become_guest(self.account.uid, ROOTS)
        os.umask(0o022)

    def facts(self, workspace: str) -> dict[str, Any]:
        """Returns what the guest (this process) reports to the host about folders when it is ready, as a
        dict: `made` is the list of folders that it created, `workspace` is the real path of `workspace`,
        without links."""
        return {"made": self.made, "workspace": os.path.realpath(workspace)}

    def of(self, header: dict[str, Any]) -> Account:
        """Gives the guest (this process) the file access rights of the user whom the request `header` names,
        or of the box's default user if it names none. Returns this user."""
        account = find(header.get("user") or self.user)
        os.setgroups(account.groups)
        open_files_of(account.uid, account.gid)
        return account

    def of_process(self, pid: int) -> None:
        """Gives the guest (this process) the file access rights of the user who runs the process `pid`. The
        guest needs them to read the environment of the process `pid`."""
        status = os.stat(f"/proc/{pid}")
        open_files_of(status.st_uid, status.st_gid)

    def of_root(self) -> None:
        """Gives the guest (this process) the file access rights of the user root in the box. Needed to remove
        the temporary file of a cancelled request, whichever user made the file."""
        open_files_of(0, 0)

    def during(self, answer: AnswerFrames, header: dict[str, Any]) -> AnswerFrames:
        """Yields the pieces of `answer`, a generator that does an operation piece by piece. Before each
        piece, gives the guest (this process) the file access rights of the user whom the request `header`
        names. Once is not enough, because between two pieces the guest handles requests of other users."""
        account = self.of(header)
        while True:
            os.setgroups(account.groups)
            open_files_of(account.uid, account.gid)
            try:
                piece = next(answer)
            except StopIteration:
                return
            yield piece


def _laid(folder: str, mode: int, owner: Account | None) -> list[str]:
    """Makes `folder` and its missing parents, if they do not exist. Returns the paths of the created folders,
    without links. A new `folder` gets the permission bits `mode` and, unless `owner` is None, this owner."""
    new = []
    path = os.path.realpath(folder)
    while not os.path.isdir(path):
        new.append(path)
        path = os.path.dirname(path)
    for path in reversed(new):
        os.mkdir(path, 0o755)
    if new:
        os.chmod(folder, mode)
        if owner:
            os.chown(folder, owner.uid, owner.gid)
    return new


def _preload() -> None:
    """Imports the modules that the guest (this process) otherwise imports only when it needs them. By then,
    root in the box could have replaced their files."""
    import fcntl  # noqa: F401
    import shutil  # noqa: F401
    import socket  # noqa: F401
    import struct  # noqa: F401
    import termios  # noqa: F401
