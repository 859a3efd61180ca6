"""Waits for what other tasks and processes do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

SECONDS = 120.0


async def until(holds: Callable[[], object], *, every: float = 0.01) -> None:
    """Returns as soon as `holds()` is true; fails after two minutes, which no test needs.

    Args:
        every: seconds between two calls of `holds`. Give more to one that asks an engine or a server.
    """
    give_up = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < give_up, f"{SECONDS:.0f} s passed, and it still does not hold"
        await asyncio.sleep(every)
