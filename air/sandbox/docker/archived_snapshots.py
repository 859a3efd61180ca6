"""Snapshots that do not end the box: tar archives of a container's workspace, stored in a folder of this
machine.

The program `tar` in the container writes and reads the archives. It runs as the user of the box's commands
(in an open box as root). A larger workspace takes longer. Commands in the box can falsify an archive;
therefore archives are only unpacked inside a box.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from air.aio import wait_shielded
from air.errors import BoxCommandError, BoxDiedError, InfrastructureError, boundary
from air.sandbox.contract import ownership
from air.sandbox.contract.box import Snapshot
from air.sandbox.contract.running_command import RunningCommand

SECONDS = 600.0
PACK = ["tar", "-c", "-f", "-", "."]
UNPACK = ["tar", "-x", "-p", "-f", "-"]
_PIECE = 1 << 20


class ArchivedSnapshot(Snapshot):
    """A snapshot of a container's workspace: a folder of this machine that contains one tar archive."""

    def __init__(self, folder: Path) -> None:
        self.id, self._folder = folder.name, folder

    @classmethod
    async def of(cls, packing: RunningCommand, most: int) -> ArchivedSnapshot:
        """Stores the standard output of the command `packing` as an archive, and returns it as a snapshot.

        Raises BoxCommandError if the command fails or prints more than `most` bytes. Commands in the box can
        cause this, for example by unreadable folders, or by sparse files, which are small on disk but large
        in an archive. Raises InfrastructureError if this machine cannot store the archive, for example
        because its disk is full. After an error, the command may still run.
        """
        snapshot = cls(ownership.make_folder())
        storing = f"a copy of a workspace cannot be stored in {snapshot._folder}"
        try:
            with boundary(InfrastructureError, storing, OSError):
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
                        raise BoxCommandError(
                            "a copy failed: the archive is larger than the workspace may be"
                        )
                    await asyncio.to_thread(file.write, data)
                else:
                    errors = (errors + data)[-500:]
        if problem := await _problem(packing, errors):
            raise BoxCommandError(f"a copy failed: {problem}")

    async def unpack(self, unpacking: RunningCommand) -> None:
        """Writes the archive to the standard input of the command `unpacking`, and waits for the command's
        end. Raises BoxDiedError if the command fails, or if the snapshot was closed. After an error, the
        command may still run."""
        try:
            archive = await asyncio.to_thread((self._folder / "workspace.tar").open, "rb")
        except FileNotFoundError as error:
            raise BoxDiedError("a snapshot was not unpacked: it was closed before") from error
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
        await wait_shielded(asyncio.to_thread(ownership.remove_folder, self._folder))


async def _problem(command: RunningCommand, errors: bytes) -> str:
    """Waits until `command`, a run of `tar`, has ended. Returns "" if it succeeded, else the reason for the
    failure. `errors` is the last part of the command's standard error."""
    if (await command.wait()).ok:
        return ""
    lines = errors.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "tar failed"
