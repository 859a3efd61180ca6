"""Watches folders of a sandbox for changes, with inotify. The helper program `files` uses this module.

Runs in the sandbox's box (container): standard library only, Python >= 3.8, and no import of `air` except the
modules beside this file.
"""

from __future__ import annotations

import ctypes
import os
import struct

from air.serve.e2b.programs.entries import entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MODIFY, ATTRIB, FROM, TO, CREATE, DELETE = 0x2, 0x4, 0x40, 0x80, 0x100, 0x200
Q_OVERFLOW, IGNORED, ISDIR = 0x4000, 0x8000, 0x4000_0000
WATCHED = MODIFY | ATTRIB | FROM | TO | CREATE | DELETE
_EVENT = struct.Struct("iIII")
_LIBC = ctypes.CDLL(None, use_errno=True)


class Watches:
    """All folders that clients watch for changes in one sandbox. Each request to watch a folder is a watch
    with a number, and may include the subfolders of the folder."""

    def __init__(self) -> None:
        self.fd = _LIBC.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        self.watches: dict[int, dict[str, Any]] = {}
        self.folders: dict[int, set[tuple[int, str]]] = {}
        """The folders that inotify observes, by inotify's watch descriptor. Several watches can include the
        same folder. So the value is a set of pairs, one for each watch: the watch's number, and the path of
        the observed folder relative to the folder of the watch."""

    def add(self, ident: int, path: str, recursive: bool, include_entry: bool) -> None:
        self.watches[ident] = {"path": path, "recursive": recursive, "entry": include_entry}
        try:
            self._observe(ident, "")
        except OSError:
            self.drop(ident)
            raise

    def _observe(self, ident: int, below: str) -> None:
        watch = self.watches[ident]
        path = os.path.join(watch["path"], below)
        number = _LIBC.inotify_add_watch(self.fd, os.fsencode(path), WATCHED)
        if number < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
        self.folders.setdefault(number, set()).add((ident, below))
        if watch["recursive"]:
            for item in os.scandir(path):
                if item.is_dir(follow_symlinks=False):
                    self._observe(ident, os.path.join(below, item.name))

    def drop(self, ident: int) -> None:
        self.watches.pop(ident, None)
        for number, users in list(self.folders.items()):
            self.folders[number] = {user for user in users if user[0] != ident}
            if not self.folders[number]:
                del self.folders[number]
                _LIBC.inotify_rm_watch(self.fd, number)

    def events(self) -> list[tuple[int, dict[str, Any]]]:
        """Returns the changes in watched folders since the last call, as pairs of a watch's number and a JSON
        object in envd's form that describes the change (`{"overflow": True}` if changes were lost)."""
        data, at, news = os.read(self.fd, 1 << 16), 0, []
        while at < len(data):
            number, mask, _, size = _EVENT.unpack_from(data, at)
            name = os.fsdecode(data[at + _EVENT.size : at + _EVENT.size + size].rstrip(b"\0"))
            at += _EVENT.size + size
            if mask & Q_OVERFLOW:
                news += [(ident, {"overflow": True}) for ident in self.watches]
            if mask & IGNORED:
                self.folders.pop(number, None)
                continue
            for ident, below in sorted(self.folders.get(number, ())):
                news += self._event(ident, os.path.join(below, name), mask)
        return news

    def _event(self, ident: int, name: str, mask: int) -> list[tuple[int, dict[str, Any]]]:
        watch = self.watches[ident]
        path = os.path.join(watch["path"], name)
        kinds = ((CREATE | TO, "CREATE"), (MODIFY, "WRITE"), (DELETE, "REMOVE"), (FROM, "RENAME"))
        kind = next((kind for bits, kind in (*kinds, (ATTRIB, "CHMOD")) if mask & bits), "")
        if not kind or not name:
            return []
        event: dict[str, Any] = {"name": name, "type": "EVENT_TYPE_" + kind}
        if watch["entry"]:
            try:
                event["entry"] = entry(path)
            except OSError:  # it is gone
                pass
        news = [(ident, event)]
        if watch["recursive"] and mask & ISDIR and mask & (CREATE | TO):
            try:
                self._observe(ident, name)
            except OSError:  # it is gone
                pass
        return news
