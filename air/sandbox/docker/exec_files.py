"""Files of a box without Python: each call is one program of `shell`, played by the box.

A path is checked by its name here, and followed without links by the program.
"""

from __future__ import annotations

import asyncio
import os
import posixpath
import secrets
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from air.errors import BoxFileError
from air.sandbox.contract.box import MAX_OUTPUT, ExecResult
from air.sandbox.docker import posix_shell
from air.sandbox.wire import archive
from air.sandbox.wire import folders as files
from air.sandbox.wire.archive import Place

SECONDS = 600.0
_PIECE = 1 << 20


class Run(Protocol):
    """Plays one program in the box."""

    async def __call__(
        self,
        argv: list[str],
        *,
        folder: str,
        timeout: float,  # noqa: ASYNC109 — as `Box.exec` has it
        env: Mapping[str, str],
        stdin: Iterable[bytes],
        max_bytes: tuple[int, int],
    ) -> ExecResult: ...


class Files:
    """The four calls of `Box` about files.

    Args:
        folders: the writable folders, as commands name them and as they are.
        run: plays a program in the box.
    """

    def __init__(self, folders: dict[str, str], run: Run) -> None:
        self._folders, self._run = folders, run

    async def read(self, path: str, *, max_bytes: int) -> bytes:
        """The bytes of a regular file; see `Box.read`."""
        place = self._place(path)
        if not place.parts:
            raise BoxFileError(f"{path!r}: it is a folder, not a regular file")
        options = [str(max_bytes + 1), *place.arguments]
        data = await self._program(path, posix_shell.READ, options, max_bytes=max_bytes + 1)
        if len(data) > max_bytes:
            raise BoxFileError(f"{path!r}: it is larger than {max_bytes} bytes")
        return data

    async def write(self, path: str, data: bytes, mode: int, *, into: str = "") -> None:
        """Writes a file; see `Box.write`. Where `path` is a folder, it becomes `into` in there."""
        place = self._place(path)
        if into and not place.parts:
            place, into = Place(place.root, (into,)), ""
        if not place.parts:
            raise BoxFileError(f"{path!r}: it is a folder")
        options = [secrets.token_hex(8), str(len(data)), f"{mode:o}"]
        options += [posix_shell.escaped(os.fsencode(into)), *place.arguments]
        await self._program(path, posix_shell.WRITE, options, stdin=pieces(data))

    async def put(self, source: Path, dest: str) -> None:
        """Copies a file or a folder's contents in; see `Box.put`."""
        entries = await asyncio.to_thread(lambda: list(files.below(source)))
        if len(entries) == 1 and not entries[0].folder:
            await self.write(dest, entries[0].data, entries[0].mode, into=source.name)
            return
        place = self._place(dest)
        options = [secrets.token_hex(8), place.root]
        packed = archive.packed(entries, place.parts)
        await self._program(dest, posix_shell.PUT, options, stdin=packed, entries=entries)

    async def get(self, path: str, dest: Path, *, max_bytes: int) -> None:
        """Copies a file or a folder's contents out; see `Box.get`."""
        place = self._place(path)
        most = max_bytes + archive.MOST_OVERHEAD
        options = [str(most), *place.arguments]
        data = await self._program(path, posix_shell.GET, options, max_bytes=most)
        try:
            if len(data) == most:
                raise BoxFileError(f"it is larger than {max_bytes} bytes")
            entries = archive.unpacked(data, max_bytes=max_bytes, above=len(place.parts))
        except BoxFileError as error:
            raise BoxFileError(f"{path!r}: {error}") from error
        await asyncio.to_thread(files.lay, entries, dest, posixpath.basename(path.rstrip("/")))

    def _place(self, path: str) -> Place:
        """Where a path leads, by its name alone."""
        try:
            return archive.place(path, self._folders)
        except (BoxFileError, UnicodeEncodeError) as error:
            raise BoxFileError(f"{path!r}: {error}") from None

    async def _program(
        self,
        path: str,
        program: str,
        options: list[str],
        *,
        stdin: Iterable[bytes] = (),
        max_bytes: int = MAX_OUTPUT,
        entries: list[files.Entry] | None = None,
    ) -> bytes:
        """What one of the programs for files prints.

        Raises:
            BoxFileError: it refused, or failed.
        """
        result = await self._run(
            ["sh", "-c", program, "air", *options],
            folder="/",
            timeout=SECONDS,
            env={},
            stdin=stdin,
            max_bytes=(max_bytes, MAX_OUTPUT),
        )
        said = result.stderr.decode("utf-8", "replace").splitlines()
        if entries is not None and result.code and len(said) > 1 and said[-1].isdigit():
            path = posixpath.join(path, entries[int(said.pop())].path)
        if result.timed_out:
            said = [f"it took longer than {SECONDS:.0f} s"]
        elif result.code == 0:
            cut = len(result.stdout) == max_bytes
            if program is not posix_shell.GET or cut or archive.whole(said):
                return result.stdout
        raise BoxFileError(f"{path!r}: {said[-1] if said else f'it failed ({result.code})'}")


def pieces(data: bytes) -> Iterator[bytes]:
    """The data in pieces of at most 1 MiB."""
    view = memoryview(data)
    for start in range(0, len(view), _PIECE):
        yield bytes(view[start : start + _PIECE])
