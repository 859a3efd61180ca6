"""Runs tool functions that are not async in threads, so that they do not block the event loop, and limits the
number of these threads.

Python cannot stop a thread. A thread whose call exceeds its time limit is abandoned: it no longer counts
towards the limit on running threads, and the process does not wait for it at exit.

Two numbers are limited, so that a tool that hangs cannot use up the threads of other tools: the running
threads of the process, and the threads of each tool, running and abandoned together. A call waits while a
limit is reached. It raises HangingToolError, which stops the run, if all threads that its tool may have are
abandoned, or if no thread of any tool becomes free for a long time. While threads become free, a call waits
without a time limit: many slow calls of other episodes only delay it.

HangingToolError is not shown to the model as an observation, because the agent whose call meets the limit did
not cause it alone: an episode has at most a few running threads, and while a call of an episode is abandoned,
`OpenTools` starts no further thread for this episode and tells the model so. Hence only many episodes
together can reach a limit. HangingToolError is no infrastructure error either: an infrastructure error leaves
the episode out of training, so that agents could escape bad rewards by slow calls.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import os
import threading
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from air.errors import HangingToolError, InfrastructureError

MOST_THREADS = 64
"""The maximum number of running tool threads in this process. Abandoned threads (whose calls exceeded their
time limit) do not count."""
MOST_OF_TOOL = 64
"""The maximum number of threads of one tool: running threads and abandoned ones (whose calls exceeded their
time limit) together."""
_PATIENCE = 600.0
"""A call that waits for a thread raises HangingToolError if no thread has become free for this number of
seconds. If a running call has a longer time limit, that limit counts instead."""


@dataclass(frozen=True)
class CallOutcome:
    """The value or the exception with which a call in a thread ended. `ThreadCall.outcome` holds a
    CallOutcome rather than the exception itself, because a future does not accept every exception."""

    value: Any = None
    error: BaseException | None = None

    async def result(self) -> Any:
        """Returns the value, or the result of the value if that is awaitable. Raises the call's exception
        unchanged; but an exception that would end or cancel the caller's task, such as SystemExit, as a
        RuntimeError."""
        if isinstance(self.error, Exception):
            raise self.error
        if self.error is not None:
            message = f"{type(self.error).__name__}: {self.error}"
            raise RuntimeError(message) from self.error
        return await self.value if inspect.isawaitable(self.value) else self.value


class ThreadCall:
    """A call of a tool that runs in a thread, or waits until the thread may start; `start` makes it. `owner`
    identifies the tool whose limit the thread counts towards, `name` is the tool's name, and `seconds` is the
    call's time limit."""

    def __init__(self, owner: Hashable, name: str, seconds: float, threads: _Threads) -> None:
        self.owner, self.name, self.seconds, self._threads = owner, name, seconds, threads
        self.loop = asyncio.get_running_loop()
        self.outcome: asyncio.Future[CallOutcome] = self.loop.create_future()
        """A future for the result of the call, in the event loop of the caller."""
        self.admission: asyncio.Future[bool] = self.loop.create_future()
        """A future for the decision whether the thread may start. True: it may. False: it may not, because
        all threads of its tool are abandoned."""
        self.is_abandoned = False

    def abandon(self) -> None:
        """Abandons the call's thread if it still runs, so that another thread can start instead."""
        self._threads.abandon(self)


class _Threads:
    """Keeps account of the calls of tools that run in threads of this process, over all event loops: the
    calls whose threads have started, and the calls that wait for permission to start one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started: set[ThreadCall] = set()
        """The calls whose threads have started and not ended, including abandoned threads."""
        self._waiting: list[ThreadCall] = []
        self._freed = 0
        """The number of times that a thread has ended or was abandoned. A call that waits for a thread
        compares earlier and later values to see whether any thread has become free."""

    async def admit(self, call: ThreadCall, patience: float) -> None:
        """Waits until a thread may start for `call`. Raises HangingToolError if all threads that its tool may
        have are abandoned. Also raises it if no thread becomes free within `patience` seconds or the longest
        time limit of a running call, whichever is longer."""
        with self._lock:
            self._waiting.append(call)
            self._serve()
        try:
            await self._wait(call, patience)
        except BaseException:  # cancellation too: nobody else would take the call out of the queue
            self.end(call)
            raise
        if not call.admission.result():
            problem = f"{MOST_OF_TOOL} earlier calls still run after their time limit"
            raise _hanging(call.name, problem)

    async def _wait(self, call: ThreadCall, patience: float) -> None:
        while not call.admission.done():
            freed, seconds = self._freed, self._longest(patience)
            await asyncio.wait([call.admission], timeout=seconds)
            if not call.admission.done() and self._freed == freed:
                holders = self.running().most_common()
                counts = ", ".join(f"{name} ({count})" for name, count in holders)
                problem = (
                    f"no thread has become free for the tool {call.name} within {seconds:g} "
                    f"seconds; running: {counts}"
                )
                raise _hanging(holders[0][0] if holders else call.name, problem)

    def abandon(self, call: ThreadCall) -> None:
        """Marks the thread of `call` as abandoned if it still runs, so that another thread can start in its
        place."""
        with self._lock:
            self._freed += call in self._started and not call.is_abandoned
            call.is_abandoned = True
            self._serve()

    def end(self, call: ThreadCall) -> None:
        """Removes `call`, because its thread has ended or its caller no longer waits for a thread."""
        with self._lock:
            self._freed += call in self._started
            self._started.discard(call)
            if call in self._waiting:
                self._waiting.remove(call)
            self._serve()

    def _longest(self, seconds: float) -> float:
        """Returns the longest time limit, in seconds, of a call that runs in a thread and is not abandoned;
        `seconds` if that is longer."""
        with self._lock:
            limits = [call.seconds for call in self._started if not call.is_abandoned]
        return max([seconds, *limits])

    def abandoned_count(self, owner: Hashable) -> int:
        """Returns the number of threads of one tool, which `owner` identifies, that still run although their
        callers no longer wait for them."""
        with self._lock:
            return sum(call.is_abandoned and call.owner == owner for call in self._started)

    def running(self) -> Counter[str]:
        """Returns the number of running threads, without abandoned threads, by the name of the tool."""
        with self._lock:
            return Counter(call.name for call in self._started if not call.is_abandoned)

    def _serve(self) -> None:
        """Decides for each waiting call, in order, whether its thread may start: yes if the limits allow it,
        no if all threads that its tool may have are abandoned. All other calls go on waiting. A call that
        must wait for its own tool does not delay the calls of other tools."""
        total = Counter(call.owner for call in self._started)
        abandoned = Counter(call.owner for call in self._started if call.is_abandoned)
        remaining: list[ThreadCall] = []
        for call in self._waiting:
            hangs = abandoned[call.owner] >= MOST_OF_TOOL
            is_free = total.total() - abandoned.total() < MOST_THREADS
            if not hangs and not (is_free and total[call.owner] < MOST_OF_TOOL):
                remaining.append(call)
            elif _decide(call, not hangs) and not hangs:
                self._started.add(call)
                total[call.owner] += 1
        self._waiting = remaining


def _hanging(tool: str, problem: str) -> HangingToolError:
    remedy = "give its function a time limit of its own"
    return HangingToolError(problem, where=f"tool {tool}", remedy=remedy)


def _decide(call: ThreadCall, is_admitted: bool) -> bool:
    """Tells the coroutine that waits to start `call` whether the thread may start: sets the result of the
    future `call.admission` to `is_admitted`, in the call's event loop. Returns False if the loop is closed,
    so that no coroutine waits; otherwise True."""
    try:
        call.loop.call_soon_threadsafe(_set, call.admission, is_admitted)
    except RuntimeError:
        return False
    return True


def _set(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():  # the waiter was cancelled
        future.set_result(value)


def abandoned_count(owner: Hashable) -> int:
    """Returns how many threads of a tool still run although their calls exceeded the time limit. `owner`
    identifies the tool."""
    return _threads(os.getpid()).abandoned_count(owner)


async def start(
    work: Callable[[], Any],
    owner: Hashable,
    name: str,
    *,
    seconds: float = 0.0,
    patience: float = _PATIENCE,
) -> ThreadCall:
    """Waits until the limits allow another thread, then starts a thread that calls `work`. `owner` identifies
    the tool whose limit the thread counts towards, and `name` is the tool's name. `seconds` is the time limit
    after which the caller abandons the call; 0 if it has none. Raises HangingToolError if all threads that
    the tool may have are abandoned. Also raises it if no thread becomes free within `patience` seconds or the
    longest time limit of a running call, whichever is longer. Raises InfrastructureError if this machine
    cannot start a thread."""
    threads = _threads(os.getpid())
    call = ThreadCall(owner, name, seconds, threads)
    await threads.admit(call, patience)
    context = contextvars.copy_context()

    def run() -> None:
        try:
            outcome = CallOutcome(context.run(work))
        except BaseException as error:  # of any kind: the caller decides
            outcome = CallOutcome(error=error)
        threads.end(call)
        try:
            call.loop.call_soon_threadsafe(_set, call.outcome, outcome)
        except RuntimeError:
            return  # the loop is closed: nobody waits

    try:
        threading.Thread(target=run, name="air-tool", daemon=True).start()
    except RuntimeError as error:
        threads.end(call)
        raise InfrastructureError(f"no thread for a tool: {error}") from error
    return call


@functools.cache
def _threads(_pid: int) -> _Threads:
    return _Threads()
