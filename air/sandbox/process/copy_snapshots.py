"""Snapshots of process boxes (boxes without a container): folders on the host that contain a copy of a
workspace. Starting a box from a snapshot makes another copy.

Copying takes longer for larger workspaces, unless the file system can share blocks between copies (btrfs,
XFS).
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

from air.aio import wait_shielded
from air.errors import BoxDiedError, InfrastructureError
from air.machine_failures import FULL_DISK
from air.sandbox.contract import ownership
from air.sandbox.contract.box import Snapshot

_FULL = tuple(f": {text}" for text in FULL_DISK)
"""The endings by which air recognises error messages of `cp` that say that the target disk is full."""


class CopiedSnapshot(Snapshot):
    """A snapshot of a process box (a box without a container): a host folder whose subfolder `workspace` is a
    copy of the workspace."""

    def __init__(self, folder: Path) -> None:
        self.id, self._folder = folder.name, folder

    @classmethod
    async def of(cls, workspace: Path) -> CopiedSnapshot:
        """Copies the workspace of a box whose processes have ended or are frozen. Raises InfrastructureError
        if this machine's disk is full, and BoxDiedError if the copy fails for another reason."""
        snapshot = cls(ownership.make_folder())
        try:
            lines = await _copy(workspace, snapshot._folder / "workspace")
            if full := [line for line in lines if line.endswith(_FULL)]:
                raise InfrastructureError(f"a copy of a workspace cannot be stored: {full[0]}")
            _check(lines)
        except BaseException:  # cancellation too: half a copy is useless
            await snapshot.close()
            raise
        return snapshot

    async def fill(self, workspace: Path) -> None:
        """Copies the files of the snapshot into the empty workspace of a box. Raises BoxDiedError if that
        fails."""
        _check(await _copy(self._folder / "workspace", workspace))

    async def close(self) -> None:
        await wait_shielded(asyncio.to_thread(ownership.remove_folder, self._folder))


async def _copy(source: Path, dest: Path) -> list[str]:
    """Copies the contents of the folder `source` into the folder `dest`, which may exist. Links are copied as
    links, not followed. Returns the lines of the error messages; none if the copy succeeded."""
    argv = ["cp", "-a", "--reflink=auto", "-T", "--", f"{source}/.", f"{dest}/"]
    env = os.environ | {"LC_ALL": "C"}  # messages in English
    run = asyncio.to_thread(subprocess.run, argv, env=env, capture_output=True, check=False)
    result = await wait_shielded(run)
    if not result.returncode:
        return []
    return result.stderr.decode("utf-8", "replace").strip().splitlines() or ["cp failed"]


def _check(lines: list[str]) -> None:
    """Raises BoxDiedError if `lines`, the error messages of a copy, are not empty."""
    if lines:
        raise BoxDiedError(f"a snapshot could not be copied: {lines[-1]}")
