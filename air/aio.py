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
    first: set[asyncio.Task[T]] = set()
    try:
        if running:
            first, _ = await asyncio.wait(running, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in running:  # once: a second time would cut short what it does on its way out
            task.cancel()
        await to_the_end(asyncio.gather(*running, return_exceptions=True))
        for work in works:  # those that never began
            work.close()
    for task in running:
        if task in first and not task.cancelled() and (error := task.exception()) is not None:
            raise error
    return [task.result() for task in running]
