"""`SizeWatch` limits how much a container writes to its own layer on the container engine's disk. No engine
enforces such a limit itself. Used for boxes with the setting `OpenBox.keep`, whose commands may write
everywhere.

The size is measured at intervals. Between two measurements, commands can write as fast as the disk allows, so
they may exceed the limit for some seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable

from air.errors import BoxDiedError
from air.sandbox.docker import engine
from air.sandbox.writable_layer.changes import answer

SOON, LATE = 2.0, 10.0
"""The shortest and the longest pause, in seconds, between two measurements of the size of a container's own
layer. The pause is the shortest at first and while the size changes, unless measuring is slow (see `SHARE`).
The number of files is counted after `LATE` seconds for the first time."""
SHARE = 0.02
"""The maximum share of the time during which the container engine should be busy with measuring what one
container has written. Slow measurements are therefore made less often, but at least every `LATE` seconds,
even if they then take a larger share."""
_MIB = 1 << 20
_LOG = logging.getLogger(__name__)


class SizeWatch:
    """Measures at intervals how much the commands of a container have written to the container's own layer on
    disk. If a limit is exceeded, calls the function `end`, which must end the box, with the reason as text.

    `container` is the container's id. `most_mb` limits the total size of new and changed files in MiB,
    `most_files` limits the number of paths that differ from the image. The measurements start with the box's
    first command (see `command_starts`). They cost the engine much time, above all the counts of files, for
    which it may have to compare all files of the image.
    """

    def __init__(
        self, container: str, most_mb: int, most_files: int, end: Callable[[str], None]
    ) -> None:
        self._container, self._most_mb, self._most_files = container, most_mb, most_files
        self._end = end
        self._size = 0
        self._next_count = 0.0
        self._ended = ""
        self._task: asyncio.Task[None] | None = None

    def command_starts(self) -> None:
        """Must be called before each command of the box. The first call starts the measurements of what the
        box has written; later calls do nothing."""
        if self._task is None:
            self._next_count = time.monotonic() + LATE
            self._task = asyncio.create_task(self._watch())

    async def check(self) -> None:
        """Measures the size now. Raises BoxDiedError if the measurement fails. If the size exceeds its limit,
        calls the function `end` of the constructor, which ends the box, and raises BoxDiedError. Does not
        count the files."""
        self._size = await engine.in_thread(lambda: _size(self._container))
        if self._size > self._most_mb * _MIB:
            self._over(f"{self._size / _MIB:.0f} MiB", f"{self._most_mb} MiB")

    async def _count(self) -> None:
        began = time.monotonic()
        files = await engine.in_thread(lambda: _files(self._container))
        self._next_count = time.monotonic() + max(SOON, (time.monotonic() - began) / SHARE)
        if files > self._most_files:
            self._over(f"{files} files", str(self._most_files))

    def _over(self, written: str, most: str) -> None:
        self._ended = f"its commands wrote {written}, and may write {most}"
        self._end(self._ended)
        raise BoxDiedError(self._ended)

    async def close(self) -> None:
        """Stops measuring what the box has written."""
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _watch(self) -> None:
        pause = SOON
        while not self._ended:
            await asyncio.sleep(pause)
            before, began = self._size, time.monotonic()
            try:
                await self.check()
                least = (time.monotonic() - began) / SHARE
                if time.monotonic() >= self._next_count:
                    await self._count()
            except BoxDiedError as error:  # the user of the box gets the error at the next request
                _LOG.info("container %s: %s", self._container[:12], error)
                least = LATE
            pause = max(SOON if self._size != before else min(2 * pause, LATE), min(least, LATE))


def _size(container: str) -> int:
    """Returns the size in bytes of a container's own layer. Blocks."""
    return int(json.loads(b"".join(answer(f"containers/{container}/json?size=1")))["SizeRw"] or 0)


def _files(container: str) -> int:
    """Returns the number of paths in a container that differ from its image. Blocks."""
    count, end = 0, b""
    for piece in answer(f"containers/{container}/changes"):
        piece = end + piece
        count += piece.count(_PATH)
        end = piece[-len(_PATH) + 1 :]
    return count


_PATH = b'"Path":'
