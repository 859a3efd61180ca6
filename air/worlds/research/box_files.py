"""Files of a box as the agent's tools work on them: text, with the permissions that it must keep.

Everything goes through the box's own `read` and `write`, which follow no link and stay in the box's
writable folders; a name that leads through links is resolved in the box first.
"""

from __future__ import annotations

import posixpath
import stat
from dataclasses import dataclass

from air.errors import BoxFileError
from air.sandbox.contract.box import Box, ExecResult
from air.worlds.base import Refusal
from air.worlds.research.window import split

FILE_BYTES = 16_000_000
"""Longest file that the tools work on."""
LOOK_SECONDS = 30.0
"""Longest that a look around the box may take."""
_NOT_RUN = 125
"""The lowest exit status with which `env` and the box say that a program did not run."""


@dataclass(frozen=True)
class TextFile:
    """A text file as it was read."""

    path: str
    """Absolute, without links, as commands see it."""
    text: str
    exact: bool
    """Whether `text` is all of it: bytes that are not UTF-8 are shown as U+FFFD."""

    @property
    def lines(self) -> list[str]:
        """Its lines, without line ends."""
        return split(self.text)


class BoxFiles:
    """The files of one box."""

    def __init__(self, box: Box) -> None:
        self._box = box

    async def look(self, *argv: str, at: str = "/", max_bytes: int = 64_000) -> ExecResult:
        """Runs a program that only looks, in the folder `at`.

        Raises:
            Refusal: it could not run there, or took too long.
        """
        command = ["env", "-C", at, *argv]
        done = await self._box.exec(command, timeout=LOOK_SECONDS, cwd="/", max_bytes=max_bytes)
        if done.timed_out:
            raise Refusal(f"{argv[0]} took over {LOOK_SECONDS:g} s. Narrow it down.")
        if done.code >= _NOT_RUN:
            raise Refusal(f"{argv[0]} could not run in {at}: {done.text.strip()}")
        return done

    async def resolve(self, path: str, cwd: str) -> str:
        """The absolute path that `path` names, links followed; it need not exist.

        Raises:
            Refusal: it names nothing that can be.
        """
        path = posixpath.join(cwd, path)
        done = await self.look("realpath", "-mz", "--", path)
        if not done.ok:
            raise Refusal(f"{path} cannot be found: {done.text.strip()}")
        return done.stdout.decode("utf-8", "surrogateescape").rstrip("\0")

    async def mode(self, path: str) -> int | None:
        """What `path` is and who may do what with it, as in `os.stat`; None where nothing is there."""
        done = await self.look("stat", "-c", "%f", "--", path)
        return int(done.stdout, 16) if done.ok else None

    async def folder(self, path: str, cwd: str) -> str:
        """The absolute path of an existing folder.

        Raises:
            Refusal: there is none.
        """
        found = await self.resolve(path, cwd)
        mode = await self.mode(found)
        if mode is None or not stat.S_ISDIR(mode):
            raise Refusal(f"There is no folder {found}.")
        return found

    async def read(self, path: str) -> TextFile:
        """A text file by its resolved path.

        Raises:
            Refusal: it cannot be read, or is no text.
        """
        try:
            data = await self._box.read(path, max_bytes=FILE_BYTES)
        except BoxFileError as error:
            raise Refusal(f"Cannot open: {error}") from error
        if b"\0" in data:
            raise Refusal(f"{path} is no text file.")
        try:
            return TextFile(path, data.decode(), exact=True)
        except UnicodeDecodeError:
            return TextFile(path, data.decode("utf-8", "replace"), exact=False)

    async def write(self, path: str, text: str) -> None:
        """Writes a file by its resolved path; one that is there keeps its permissions.

        Raises:
            Refusal: it is read-only, or cannot be written.
        """
        mode = await self.mode(path)
        if mode is not None:
            writable = await self.look("test", "-w", path)
            # The process box may run as root, which may write anything: its permissions count too.
            if not mode & 0o222 or not writable.ok:
                raise Refusal(f"{path} is read-only.")
        try:
            data = text.encode()
        except UnicodeEncodeError:
            raise Refusal("The text holds characters that no file can hold.") from None
        try:
            await self._box.write(path, data, mode=0o644 if mode is None else mode & 0o777)
        except BoxFileError as error:
            raise Refusal(f"Cannot write: {error}") from error
