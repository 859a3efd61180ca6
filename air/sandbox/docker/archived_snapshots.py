"""Snapshots that leave a container alive: archives of its workspace in a folder of this machine.

The container's own `tar` writes and reads the archives, as the user of commands (in an open box as root), so
the time grows with the size of the workspace. An archive may contain anything; therefore it is only unpacked
inside a box.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from pathlib import Path

from air.aio import to_the_end
from air.errors import BoxCommandError, BoxDiedError
from air.sandbox.contract import ownership
from air.sandbox.contract.box import Snapshot
from air.sandbox.contract.running import RunningCommand

SECONDS = 600.0
PACK = ["tar", "-c", "-f", "-", "."]
UNPACK = ["tar", "-x", "-p", "-f", "-"]
_PIECE = 1 << 20


class ArchivedSnapshot(Snapshot):
    """A snapshot of a container's workspace: a folder of this machine that contains one archive."""

    def __init__(self, folder: Path) -> None:
        self.id, self._folder = folder.name, folder

    @classmethod
    async def of(cls, packing: RunningCommand, most: int) -> ArchivedSnapshot:
        """Stores the output of the command `packing` as an archive. Raises BoxCommandError if the command
        fails or prints more than `most` bytes. Commands in the box can cause this, by unreadable folders or
        files with holes."""
        snapshot = cls(Path(tempfile.mkdtemp(prefix=ownership.folder_prefix())))
        try:
            await snapshot._store(packing, most)
        except BaseException:  # cancellation too: half an archive is useless
            await snapshot.close()
            raise
        return snapshot

    async def _store(self, packing: RunningCommand, most: int) -> None:
        errors, size = b"", 0
        with await asyncio.to_thread((self._folder / "workspace.tar").open, "wb") as file:
            async for stream, data in packing.output():
                if stream == "stdout":
                    size += len(data)
                    if size > most:
                        await packing.signal(9)
                        raise BoxCommandError(
                            "a copy failed: the archive is larger than the workspace may be"
                        )
                    await asyncio.to_thread(file.write, data)
                else:
                    errors = (errors + data)[-500:]
        if problem := await _problem(packing, errors):
            raise BoxCommandError(f"a copy failed: {problem}")

    async def unpack(self, unpacking: RunningCommand) -> None:
        """Passes the archive to the command `unpacking`. Raises BoxDiedError if that fails."""
        archive = await asyncio.to_thread((self._folder / "workspace.tar").open, "rb")
        with (
            archive as file,
            contextlib.suppress(BoxCommandError),
        ):  # the command may end first: its result says why
            while data := await asyncio.to_thread(file.read, _PIECE):
                await unpacking.write(data)
            await unpacking.close_stdin()
        errors = b"".join([data async for _, data in unpacking.output()])
        if problem := await _problem(unpacking, errors):
            raise BoxDiedError(f"a snapshot was not unpacked: {problem}")

    async def close(self) -> None:
        await to_the_end(asyncio.to_thread(ownership.remove_folder, self._folder))


async def _problem(command: RunningCommand, errors: bytes) -> str:
    """Waits until a command has ended. Returns why it failed, or an empty text."""
    if (await command.wait()).ok:
        return ""
    lines = errors.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "tar failed"
