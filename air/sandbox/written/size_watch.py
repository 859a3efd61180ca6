"""`SizeWatch` bounds what a container writes to its own layer on the engine's disk, which no engine bounds.

It measures from time to time. Between two measurements commands can write as fast as the disk takes it.
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
from air.sandbox.written.changes import answer

SOON, LATE = 2.0, 10.0
"""Seconds between two measurements: at first and while the size grows, and at most."""
SHARE = 0.02
"""The largest share of the time that the engine spends on measurements of one container."""
_MIB = 1 << 20
_LOG = logging.getLogger(__name__)


class SizeWatch:
    """Measures a container's own layer at intervals, and calls `end` with a reason if it is too large.

    `most_mb` limits the sizes of new and changed files, `most_files` their number.
    """

    def __init__(
        self, container: str, most_mb: int, most_files: int, end: Callable[[str], None]
    ) -> None:
        self._container, self._most_mb, self._most_files = container, most_mb, most_files
        self._end = end
        self._size = 0
        self._next_count = 0.0
        self._ended = ""
        self._task = asyncio.create_task(self._watch())

    async def check(self) -> None:
        """Measures the size now. Raises BoxDiedError, and ends the box, if it is too large or this fails."""
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
        """Ends the measurements."""
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
            except BoxDiedError as error:  # who uses the box learns of it by the next request
                _LOG.info("container %s: %s", self._container[:12], error)
                least = LATE
            pause = max(SOON if self._size != before else min(2 * pause, LATE), min(least, LATE))


def _size(container: str) -> int:
    """Returns the bytes of a container's own layer. Blocks."""
    return int(json.loads(b"".join(answer(f"containers/{container}/json?size=1")))["SizeRw"] or 0)


def _files(container: str) -> int:
    """Returns how many paths of a container are not as in its image. Blocks."""
    count, end = 0, b""
    for piece in answer(f"containers/{container}/changes"):
        piece = end + piece
        count += piece.count(_PATH)
        end = piece[-len(_PATH) + 1 :]
    return count


_PATH = b'"Path":'
