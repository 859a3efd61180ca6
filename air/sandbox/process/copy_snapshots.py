"""Snapshots of process boxes: folders on the host that contain a copy of a workspace. Starting a box from a
snapshot makes another copy.

Copying takes longer for larger workspaces, unless the file system can share blocks between copies (btrfs,
XFS).
"""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from pathlib import Path

from air.aio import wait_shielded
from air.errors import BoxDiedError
from air.sandbox.contract import ownership
from air.sandbox.contract.box import Snapshot


class CopiedSnapshot(Snapshot):
    """A snapshot of a process box: a host folder whose subfolder `workspace` is a copy of the workspace."""

    def __init__(self, folder: Path) -> None:
        self.id, self._folder = folder.name, folder

    @classmethod
    async def of(cls, workspace: Path) -> CopiedSnapshot:
        """Copies the workspace of a box whose processes have ended or are frozen. Raises BoxDiedError if that
        fails."""
        snapshot = cls(Path(tempfile.mkdtemp(prefix=ownership.folder_prefix())))
        try:
            await _copy(workspace, snapshot._folder / "workspace")
        except BaseException:  # cancellation too: half a copy is useless
            await snapshot.close()
            raise
        return snapshot

    async def fill(self, workspace: Path) -> None:
        """Copies the files of the snapshot into the empty workspace of a box. Raises BoxDiedError if that
        fails."""
        await _copy(self._folder / "workspace", workspace)

    async def close(self) -> None:
        await wait_shielded(asyncio.to_thread(ownership.remove_folder, self._folder))


async def _copy(source: Path, dest: Path) -> None:
    """Copies the contents of the folder `source` into the folder `dest`, which may exist. Links are copied as
    links, not followed. Raises BoxDiedError if copying fails."""
    argv = ["cp", "-a", "--reflink=auto", "-T", "--", f"{source}/.", f"{dest}/"]
    run = asyncio.to_thread(subprocess.run, argv, capture_output=True, check=False)
    result = await wait_shielded(run)
    if result.returncode:
        lines = result.stderr.decode("utf-8", "replace").strip().splitlines()
        raise BoxDiedError(f"a snapshot could not be copied: {lines[-1] if lines else 'cp failed'}")
