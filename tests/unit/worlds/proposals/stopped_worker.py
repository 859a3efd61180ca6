"""Stops the process that compares expressions, so that a comparison waits until the test goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from types import TracebackType
from typing import Any, Self

from air.rewards.answers import runner
from air.rewards.answers.mathematics import equal
from tests.until import until

_SECONDS = 60.0
"""After this time the process goes on in any case, so that a test whose event loop waits fails, and does not
hang. It is less than the patience of a comparison."""


class StoppedWorker:
    """Context manager: in its block, the next comparison of expressions waits until `go_on` is called."""

    def __init__(self) -> None:
        self.goes_on = False
        self._timer = threading.Timer(_SECONDS, self.go_on)

    def __enter__(self) -> Self:
        while idle := runner._workers.get(os.getpid()):
            idle.pop().close()
        assert equal("x + 1", "1 + x")  # so that there is one idle process
        self._process = runner._workers[os.getpid()][0]._process
        self._process.send_signal(signal.SIGSTOP)
        self._timer.start()
        return self

    async def reached(self, task: asyncio.Task[Any]) -> None:
        """Waits, in the event loop, until `task` compares expressions. Fails if the event loop cannot go on
        during the comparison."""
        await until(lambda: task.done() or not runner._workers[os.getpid()])
        assert not task.done()
        assert not self.goes_on

    def go_on(self) -> None:
        self.goes_on = True
        self._process.send_signal(signal.SIGCONT)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        self._timer.join()
        self.go_on()
