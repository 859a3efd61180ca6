"""Shows whether the event loop goes on while something works."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable

_SECONDS = 0.002


async def longest_pause(work: Awaitable[object]) -> float:
    """Awaits `work`, and returns how long the event loop stood still at most meanwhile: as a share, from 0 to
    1, of the processor time that this process used. It is near 1 if one long computation keeps the event loop
    from turning, on the loop itself or in a thread that does not let go of Python's lock.

    Only processor time of this process counts, so that load changes little.
    """
    began = last = time.process_time()
    longest = 0.0

    def note() -> None:
        nonlocal last, longest
        now = time.process_time()
        last, longest = now, max(longest, now - last)

    working = asyncio.ensure_future(work)
    while not working.done():
        await asyncio.wait([working], timeout=_SECONDS)
        note()
    await working
    return longest / (last - began)
