"""Helpers for asyncio code: functions that wait for coroutines, tasks or work in a thread, or cancel them on
Ctrl-C or when an HTTP client disconnects.

When such a function ends, also because it was cancelled, the work that it started has ended, too.
"""

from __future__ import annotations

import asyncio
import contextvars
import signal
import threading
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


async def wait_shielded(work: Awaitable[T], on_cancel: Callable[[], None] | None = None) -> T:
    """Waits for `work` and returns its result. If the caller is cancelled meanwhile, waits until `work` has
    ended, and then raises CancelledError, even if `work` has failed. `on_cancel` is called at each
    cancellation."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
            if on_cancel is not None:
                on_cancel()
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # marks an error as seen: the caller gets the cancellation instead
        raise cancelled
    return task.result()


async def cancel_and_wait(task: asyncio.Task[Any]) -> None:
    """Cancels `task` if it still runs, and waits until it has ended. Ignores the task's result or
    exception."""
    task.cancel()
    await wait_shielded(asyncio.gather(task, return_exceptions=True))


async def run_in_thread(
    pool: ThreadPoolExecutor, work: Callable[[], T], stop: Callable[[], None]
) -> T:
    """Runs `work` in a thread of `pool`, with a copy of the caller's context variables, and returns the
    result of `work`. If the caller is cancelled meanwhile, calls `stop`, which should make `work` end early,
    waits until `work` has ended, and then raises CancelledError. If no thread has begun `work` when the
    caller is cancelled, `work` never runs."""
    future = pool.submit(contextvars.copy_context().run, work)
    running = asyncio.wrap_future(future)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        stop()
        future.cancel()  # has no effect if a thread has begun the work
        await wait_shielded(asyncio.gather(running, return_exceptions=True))
        raise


async def run_concurrently(
    works: Sequence[Coroutine[Any, Any, T]], at_once: int | None = None
) -> list[T]:
    """Runs all coroutines in `works`, and returns their results in order. At most `at_once` coroutines run at
    the same time (None: all). If one coroutine raises an error, the others are cancelled. The error is raised
    after all have ended."""
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
        for task in running:  # only once, because a second cancellation would interrupt its cleanup
            task.cancel()
        await wait_shielded(asyncio.gather(*running, return_exceptions=True))
        for work in works:  # for coroutines that never began; otherwise does nothing
            work.close()
    for task in running:
        if task in first and not task.cancelled() and (error := task.exception()) is not None:
            raise error
    return [task.result() for task in running]


class ClientLeft(Exception):
    """Raised if an HTTP client closed its connection before its response was ready."""


async def while_connected(
    receive: Callable[[], Awaitable[MutableMapping[str, Any]]], work: Callable[[], Awaitable[T]]
) -> T:
    """Runs `work` for a request to an HTTP server, and returns the result of `work`. If the client
    disconnects meanwhile, cancels `work`, waits until it has ended, and raises ClientLeft.

    `receive` is the function from which an ASGI application receives messages about the request. The caller
    must have read the whole body of the request before.
    """

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    task, leaving = asyncio.ensure_future(work()), asyncio.ensure_future(gone())
    try:
        await asyncio.wait([task, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientLeft
        return task.result()
    finally:
        for each in (task, leaving):
            each.cancel()
        await asyncio.gather(task, leaving, return_exceptions=True)


@contextmanager
def cancelled_by_signals(on_further: Callable[[], None]) -> Iterator[None]:
    """Context manager: the first SIGINT or SIGTERM during the `with` block cancels the current asyncio task.

    Each further signal only calls `on_further`, so that it does not disturb the cleanup. At the end, calls
    `restore_signal_handlers`. Has no effect outside of the main thread, because only the main thread receives
    signals.
    """
    task = asyncio.current_task()
    assert task is not None
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    stopping = False

    def stop() -> None:
        nonlocal stopping
        if stopping:
            on_further()
        else:
            stopping = True
            task.cancel()

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number in _SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in before:
            loop.remove_signal_handler(number)
        restore_signal_handlers(before)  # such as that of `asyncio.run` for Ctrl-C


def restore_signal_handlers(before: Mapping[signal.Signals, Any]) -> None:
    """Installs the signal handlers `before`: those that `signal.signal` or `signal.getsignal` has returned,
    by the number of the signal. A handler None was installed by C code, and Python cannot install it again;
    such a signal gets its default effect."""
    for number, handler in before.items():
        signal.signal(number, signal.SIG_DFL if handler is None else handler)
