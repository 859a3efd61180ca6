"""Waiting for work of ours so that nothing is left running, cancelled or not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


async def to_the_end(work: Awaitable[T]) -> T:
    """Waits for `work` even when the caller is cancelled meanwhile; the cancellation comes after."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # the cancellation is what the caller gets
        raise cancelled
    return task.result()


async def together(works: Sequence[Coroutine[Any, Any, T]], at_once: int | None = None) -> list[T]:
    """What all give, run `at_once` at a time, or all; if one raises, the others are cancelled and have
    ended before it is raised."""
    gate = asyncio.Semaphore(at_once or max(1, len(works)))

    async def one(work: Coroutine[Any, Any, T]) -> T:
        async with gate:
            return await work

    running = [asyncio.create_task(one(work)) for work in works]
    try:
        return list(await asyncio.gather(*running))
    except BaseException:  # cancellation too: nothing is left running
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for work in works:  # those that never began
            work.close()
        raise
