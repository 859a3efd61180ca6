"""Reads and writes text files in a box (sandbox), for the agent's tools.

`BoxFiles.read` and `write` do not follow symbolic links. So the caller first converts a path with
`BoxFiles.resolve`, which returns a path without links.
"""

from __future__ import annotations

import asyncio
import posixpath
import stat
from dataclasses import dataclass

from air.errors import BoxFileError
from air.sandbox.contract.box import Box, ExecResult
from air.tools.base import ToolError
from air.tools.workbench.numbered_lines import NumberedLines

FILE_BYTES = 16_000_000
"""The largest file, in bytes, that the tools open."""
LOOK_SECONDS = 30.0
"""The time limit, in seconds, of one command that inspects the box."""
_NOT_RUN = 125
"""An exit status of this number or more shows that the program itself did not run: `env` or the box could not
start it."""


@dataclass(frozen=True)
class TextFile:
    """The content of a text file at the time when it was read."""

    path: str
    """The absolute path without symbolic links, as commands in the box see it."""
    lines: NumberedLines
    exact: bool
    """Whether the file is valid UTF-8. If not, `lines` has the character U+FFFD in place of invalid bytes."""


class BoxFiles:
    """Reads and writes the files in one box, for the agent's tools."""

    def __init__(self, box: Box) -> None:
        self._box = box

    async def look(self, *argv: str, at: str = "/", max_bytes: int = 64_000) -> ExecResult:
        """Runs a program that inspects the box, in the folder `at` of the box, and returns its result, with
        at most `max_bytes` bytes of each output stream. The program must not change anything.

        Raises ToolError if the program cannot run in that folder, or takes longer than `LOOK_SECONDS`.
        """
        command = ["env", "-C", at, *argv]
        result = await self._box.exec(command, timeout=LOOK_SECONDS, cwd="/", max_bytes=max_bytes)
        if result.timed_out:
            raise ToolError(f"{argv[0]} took over {LOOK_SECONDS:g} s. Narrow it down.")
        if result.code >= _NOT_RUN:
            raise ToolError(f"{argv[0]} could not run in {at}: {result.text.strip()}")
        return result

    async def resolve(self, path: str, cwd: str) -> str:
        """Returns the absolute path without symbolic links for `path`, which is absolute or relative to the
        folder `cwd`.

        The file does not have to exist. Raises ToolError if the path cannot be resolved.
        """
        path = posixpath.join(cwd, path)
        result = await self.look("realpath", "-mz", "--", path)
        if not result.ok:
            raise ToolError(f"{path} cannot be found: {result.text.strip()}")
        return result.stdout.decode("utf-8", "surrogateescape").rstrip("\0")

    async def mode(self, path: str) -> int | None:
        """Returns `st_mode` (file type and permission bits) of `path`, or None if it does not exist."""
        result = await self.look("stat", "-c", "%f", "--", path)
        return int(result.stdout, 16) if result.ok else None

    async def folder(self, path: str, cwd: str) -> str:
        """Returns the absolute path, without symbolic links, of the existing folder `path`, which is absolute
        or relative to the folder `cwd`. Raises ToolError if `path` is not a folder."""
        target = await self.resolve(path, cwd)
        mode = await self.mode(target)
        if mode is None or not stat.S_ISDIR(mode):
            raise ToolError(f"There is no folder {target}.")
        return target

    async def read(self, path: str) -> TextFile:
        """Reads a text file. `path` must be a result of `resolve`. Raises ToolError if the file cannot be
        read or is not text."""
        try:
            data = await self._box.read(path, max_bytes=FILE_BYTES)
        except BoxFileError as error:
            raise ToolError(f"Cannot open: {error}") from error
        return await asyncio.to_thread(_decoded, path, data)

    async def write(self, path: str, text: str) -> None:
        """Writes a text file as UTF-8, and keeps an existing file's permissions. `path` must be a result of
        `resolve`.

        Raises ToolError if the file is read-only or cannot be written.
        """
        mode = await self.mode(path)
        if mode is not None:
            writable = await self.look("test", "-w", path)
            # A process box (a plain process, not a container) may run as root, which may write any file:
            # so the file's permission bits count, too.
            if not mode & 0o222 or not writable.ok:
                raise ToolError(f"{path} is read-only.")
        try:
            data = await asyncio.to_thread(text.encode)
        except UnicodeEncodeError:
            raise ToolError("The text holds characters that no file can hold.") from None
        try:
            await self._box.write(path, data, mode=0o644 if mode is None else mode & 0o777)
        except BoxFileError as error:
            raise ToolError(f"Cannot write: {error}") from error


def _decoded(path: str, data: bytes) -> TextFile:
    if b"\0" in data:
        raise ToolError(f"{path} is no text file.")
    try:
        return TextFile(path, NumberedLines(data.decode()), exact=True)
    except UnicodeDecodeError:
        return TextFile(path, NumberedLines(data.decode("utf-8", "replace")), exact=False)
