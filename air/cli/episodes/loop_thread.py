"""Runs an asyncio event loop in a thread of its own, for `air shell`. So the main thread can read from the
terminal and react to Ctrl-C."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Loop:
    """Context manager: runs an asyncio event loop in its own thread during the `with` block.

    All coroutines in the loop must have finished before the block ends.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Loop:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def run(
        self, work: Coroutine[Any, Any, T], on_interrupt: Callable[[], None] | None = None
    ) -> T:
        """Runs the coroutine `work` in the loop's thread, waits for it, and returns its result.

        If `on_interrupt` is given, each Ctrl-C calls it in the loop's thread, and `run` continues to wait for
        `work`. If `on_interrupt` is None, Ctrl-C cancels `work`, and `run` raises KeyboardInterrupt when
        `work` has ended by this cancellation.
        """
        task = asyncio.run_coroutine_threadsafe(_task(work), self._loop).result()
        end = threading.Event()
        self._loop.call_soon_threadsafe(task.add_done_callback, lambda _: end.set())
        interrupted = False
        while not end.is_set():
            try:
                end.wait()
            except KeyboardInterrupt:
                interrupted = on_interrupt is None
                self._loop.call_soon_threadsafe(on_interrupt or task.cancel)
        if interrupted and task.cancelled():
            raise KeyboardInterrupt
        return task.result()


async def _task(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    return asyncio.create_task(work)
