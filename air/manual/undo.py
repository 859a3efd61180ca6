"""Undo points for `air shell`: each holds the state of an episode before a reply, with a copy of the
workspace (the agent's folder).

A command in the box (the agent's sandbox) makes the copy, while other processes continue to run;
`Box.snapshot` would end them. The copy preserves links, permissions and times. The image of the box must
contain GNU tar and gzip.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass, replace
from pathlib import Path

from air.env.episode import Counters
from air.env.research_episode import ResearchEpisode
from air.errors import BoxDiedError, InfrastructureError, boundary
from air.sandbox.contract.box import Box
from air.worlds.research.world import ResearchWorld

COPY_BYTES = 64 << 20
"""The maximum size in bytes of a copy of the workspace, after compression. A larger workspace is not
copied."""
COPY_SECONDS = 120.0
_PACK = ("tar", "-cf", "-", "-I", "gzip -1", ".")
_UNPACK = ("tar", "-xpzf", "-")
_CHANGED_MEANWHILE = 1  # tar's exit status if a file changed while it was read


class _NotCopiedError(Exception):
    """The error that is raised if the workspace cannot be copied. The message is the reason."""


@dataclass(frozen=True)
class UndoPoint:
    """An undo point: the state of an episode before one reply."""

    world: ResearchWorld
    """A copy of the state of the world (which executes the actions) before the reply. The copy refers to the
    box that the episode had then."""
    counters: Counters
    malformed: int
    """The number of replies without a valid action in a row, directly before the reply of this undo point."""
    lines: int
    """The number of lines that the record of the episode (trajectory) had before the reply."""
    copy: Path | None
    """The file with the copy of the workspace; None if the workspace could not be copied."""
    why_not: str = ""
    """The reason why the workspace was not copied; empty if it was copied."""

    @classmethod
    async def of(cls, episode: ResearchEpisode, lines: int, folder: Path) -> UndoPoint:
        """Copies the workspace of `episode` to a new file in `folder`, and returns an undo point of the
        present state. If the workspace cannot be copied, for example because it is too large, the undo point
        has no copy.

        `lines` is the present number of lines of the episode's trajectory. Raises BoxDiedError if the box is
        gone, and InfrastructureError if the disk is full.
        """
        world, archive, why_not = episode.world, None, ""
        try:
            archive = await _pack(world.box, folder)
        except _NotCopiedError as error:
            why_not = str(error)
        counters, malformed = replace(episode.counters), episode.malformed_in_a_row
        return cls(world.fork(world.box), counters, malformed, lines, archive, why_not)

    def forget(self) -> None:
        """Deletes the file with the copy of the workspace."""
        if self.copy is not None:
            self.copy.unlink(missing_ok=True)


async def _pack(box: Box, folder: Path) -> Path:
    result = await box.exec(_PACK, timeout=COPY_SECONDS, max_bytes=COPY_BYTES)
    if result.truncated or result.timed_out:
        raise _NotCopiedError("the workspace is too large for a copy")
    if result.code not in (0, _CHANGED_MEANWHILE) or not result.began:
        last = " ".join(result.stderr.decode("utf-8", "replace").split())[-200:]
        raise _NotCopiedError(f"the workspace could not be copied: {last or f'exit {result.code}'}")
    path = folder / f"{uuid.uuid4().hex}.tar.gz"
    with boundary(InfrastructureError, "a copy of the workspace", OSError):
        await asyncio.to_thread(path.write_bytes, result.stdout)
    return path


async def unpack(kept: Path, box: Box) -> None:
    """Unpacks `kept`, a file with a copy of a workspace, into the empty workspace of a new box.

    Raises BoxDiedError if unpacking fails, and InfrastructureError if the file cannot be read.
    """
    with boundary(InfrastructureError, "a copy of the workspace", OSError):
        data = await asyncio.to_thread(kept.read_bytes)
    result = await box.exec(_UNPACK, timeout=COPY_SECONDS, stdin=data)
    if not result.ok:
        last = " ".join(result.text.split())[-200:]
        raise BoxDiedError(f"a workspace could not be restored: {last}")
