"""Defines `ResourcePool`: expensive objects, such as browser processes, that episodes borrow one after the
other and that are reset in between."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import functools
import inspect
import logging
import math
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any

from air.aio import wait_shielded
from air.errors import AirError, ConfigError, InfrastructureError, UsageError, UserCodeError
from air.tools import threads
from air.tools.shared_semaphore import Pool
from air.tools.states import is_cancelled, make_state

_LOG = logging.getLogger(__name__)
_GRACE = 10.0
"""The maximum time, in seconds, for which a cancelled episode waits until a factory that runs in a thread has
ended, so that the new object can be closed."""
_UNCLOSED = "%s: a %s was not closed, because its event loop does not run"
_pools: weakref.WeakSet[ResourcePool] = weakref.WeakSet()


@dataclass(eq=False)
class _Resource:
    """An object of a pool that is not closed yet. `loop` is the event loop in which it was made, the only one
    in which it is used. `uses` is the number of episodes that have borrowed it."""

    value: Any
    loop: asyncio.AbstractEventLoop
    uses: int = 0
    is_ending: bool = False
    """Whether the object must not be borrowed, because it is being closed."""
    ended: concurrent.futures.Future[None] = field(default_factory=concurrent.futures.Future)
    """Is done when the object is closed."""


class ResourcePool:
    """A pool of at most `size` expensive objects, such as browser processes, that the episodes of this
    process borrow one after the other. Use it as the `state` of tools:

        browsers = ResourcePool(Browser, size=4)

        @tool(state=browsers)
        async def open_page(browser: Browser, url: str) -> str: ...

    All tools of an episode with the same pool share one object. An episode waits at its start for a place,
    in the order of arrival, and makes an object if no idle one is left.

    `factory` makes an object. It gets no argument. The object has these methods, sync or async:

    - `reset()` removes everything that an episode can leave behind. It is required, unless the argument
      `reset` is a function that does this for the object, its only argument.
    - `begin(context)`, optional, prepares the object for an episode, which the `ToolContext` describes.
    - `close()`, optional, ends the object. It is called again if it was cancelled.

    Functions that are not async, the factory included, run in changing threads. `reset`, `begin` and `close`
    may take `seconds` each; the time limit of `factory` is that of a tool's state.

    An object is closed and replaced, never given to another episode, if `reset` fails or exceeds its time
    limit, if a call exceeded its time limit or was cancelled, or if `most_uses` episodes have borrowed the
    object. An agent can cause a failure of `reset` or `close`, so it is logged and does not change the
    episode's result. A failure of `begin` is an infrastructure error only for a new object; an old object is
    replaced.

    An object is used in one event loop only, and closed at this loop's end, as `asyncio.run` ends it. If an
    episode in another loop finds no other place, an idle object of the first loop is closed for it. Objects
    of a loop that was not ended this way are closed at the end of the process, if their `close` is not async.

    Raises ConfigError if an argument is invalid, or if `factory` is a class without the method `reset`.
    """

    def __init__(
        self,
        factory: Callable[[], Any],
        size: int,
        *,
        reset: Callable[[Any], Any] | None = None,
        most_uses: int | None = None,
        seconds: float = 30.0,
    ) -> None:
        self.name = f"ResourcePool({getattr(factory, '__name__', None) or type(factory).__name__})"
        self.factory, self.reset, self.most_uses, self.seconds = factory, reset, most_uses, seconds
        self._check(size)
        self.places = Pool(size)
        """The semaphore that limits how many episodes borrow an object. An episode holds a place from before
        `borrow` until after `give_back`."""
        self._slots: list[_Resource | None] = [None] * size
        """One entry for each place that no episode holds: an idle object, or None. So there are never more
        objects than places, except those whose factory exceeded its time limit until they are closed."""
        self._alive: set[_Resource] = set()
        """All objects whose `close` has not been called."""
        self._borrowed: dict[int, _Resource] = {}
        """The objects that episodes hold, by the `id` of the object."""
        self._ends: dict[asyncio.AbstractEventLoop, AsyncGenerator[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._lock = threading.Lock()
        self._process = os.getpid()
        _pools.add(self)

    def _check(self, size: int) -> None:
        if not callable(self.factory):
            message, remedy = f"{self.factory!r:.80} is no factory", "give a class or a function"
            raise ConfigError(message, where="ResourcePool", remedy=remedy)
        try:
            inspect.signature(self.factory).bind()
        except TypeError:
            message = "the factory requires arguments"
            remedy = "give a function without parameters; `begin(context)` gets the ToolContext"
            raise ConfigError(message, where=self.name, remedy=remedy) from None
        except ValueError:  # a builtin without a known signature
            pass
        counts = {"size": size, "most_uses": 1 if self.most_uses is None else self.most_uses}
        for key, count in counts.items():
            if type(count) is not int or count < 1:
                raise ConfigError(f"{key} must be a positive integer", where=self.name)
        if not 0 < self.seconds < math.inf:
            raise ConfigError("seconds must be a positive number", where=self.name)
        if self.reset is not None and not callable(self.reset):
            raise ConfigError("reset must be a function of the object", where=self.name)
        if isinstance(self.factory, type):
            self._check_reset(self.factory, self.factory.__name__, ConfigError)

    def _check_reset(self, resource: Any, name: str, error: type[UsageError]) -> None:
        if self.reset is None and not callable(getattr(resource, "reset", None)):
            remedy = (
                "add the method, which removes all that an episode leaves, or give `reset=FUNCTION`"
            )
            raise error(f"{name} has no method `reset`", where=self.name, remedy=remedy)

    async def borrow(self, context: Any, name: str, seconds: float) -> Any:
        """Returns an object for the episode that `context`, a `ToolContext`, describes. The caller holds a
        place in `places`, and returns the object with `give_back` before the place. A new object is made for
        the tool `name` within `seconds`.

        Raises InfrastructureError if no object can be made, or not in time, and UserCodeError if a new object
        cannot be reset or is already in the pool."""
        loop = asyncio.get_running_loop()
        resource = self._take(loop)
        try:
            if resource is not None:
                is_here = resource.loop is loop and not resource.is_ending
                if not is_here or await self._failure_of_begin(resource, context) is not None:
                    await self._close(resource)
                    resource = None
            if resource is None:
                resource = await self._new(name, seconds)
                await self._begin_new(resource, context)
        except BaseException:  # cancellation too
            try:
                if resource is not None:
                    await wait_shielded(self._close(resource))
            finally:
                self._put(None)
            raise
        resource.uses += 1
        self._borrowed[id(resource.value)] = resource
        return resource.value

    async def give_back(self, value: Any, *, may_reuse: bool) -> None:
        """Ends an episode's use of the object `value`: resets it for the next episode, or closes it. If not
        `may_reuse`, it is always closed. Failures are logged. If the call is cancelled, the object is closed
        before CancelledError is raised."""
        resource = self._borrowed.pop(id(value))
        is_used_up = self.most_uses is not None and resource.uses >= self.most_uses
        is_clean = False
        try:
            is_here = resource.loop is asyncio.get_running_loop() and resource in self._alive
            if may_reuse and is_here and not is_used_up:
                reset = value.reset if self.reset is None else functools.partial(self.reset, value)
                is_clean = await self._failure(resource, "reset", reset) is None
        finally:
            try:
                if not is_clean:
                    await wait_shielded(self._close(resource))
            finally:
                self._put(resource if is_clean else None)

    async def close(self) -> None:
        """Closes all idle objects, also those of other event loops. Failures are logged. The pool can be used
        further: the next episode makes a new object."""
        with self._lock:
            idle = [one for one in self._slots if one is not None]
        await self._end(idle)

    async def _end(self, resources: list[_Resource]) -> None:
        """Closes objects that may be idle. Until they are closed, they keep their places, so that no episode
        makes an object beyond the pool's size."""
        with self._lock:
            for one in resources:
                one.is_ending = True
        await asyncio.gather(*map(self._close, resources))
        with self._lock:
            self._slots = [None if one in resources else one for one in self._slots]

    def _take(self, loop: asyncio.AbstractEventLoop) -> _Resource | None:
        """Removes the best entry of `_slots` and returns it: an idle object of `loop`, the one that was used
        last, else None (a new object can be made), else an idle object of another loop."""

        def rank(number: int) -> int:
            one = self._slots[number]
            return 1 if one is None else 2 * (one.loop is loop and not one.is_ending)

        with self._lock:
            return self._slots.pop(max(reversed(range(len(self._slots))), key=rank))

    def _put(self, resource: _Resource | None) -> None:
        with self._lock:
            self._slots.append(resource)

    async def _new(self, name: str, seconds: float) -> _Resource:
        """Makes an object (see `borrow`), which will be closed at the end of the current event loop."""
        loop = asyncio.get_running_loop()
        for ended in [one for one in list(self._ends) if one.is_closed()]:
            self._ends.pop(ended, None)
        if loop not in self._ends:
            self._ends[loop] = self._until_end(loop)
            await anext(self._ends[loop])

        async def close(value: Any) -> None:
            await self._close(self._added(value, loop))

        value = await make_state(self.factory, (), name, seconds, close=close, grace=_GRACE)
        resource = self._added(value, loop)
        try:
            self._check_reset(value, type(value).__name__, UserCodeError)
        except UserCodeError:
            await wait_shielded(self._close(resource))
            raise
        return resource

    def _added(self, value: Any, loop: asyncio.AbstractEventLoop) -> _Resource:
        with self._lock:
            if any(one.value is value for one in self._alive):
                message, remedy = "the factory returned the same object twice", "make a new one"
                raise UserCodeError(message, where=self.name, remedy=remedy)
            resource = _Resource(value, loop)
            self._alive.add(resource)
        return resource

    async def _until_end(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[None]:
        """Yields once, and closes the objects of the event loop `loop` at its end: `asyncio.run` closes the
        open async generators of a loop after it has cancelled the loop's tasks."""
        try:
            yield
        finally:
            self._ends.pop(loop, None)
            with self._lock:
                remaining = [one for one in self._alive if one.loop is loop]
            await self._end(remaining)

    async def _begin_new(self, resource: _Resource, context: Any) -> None:
        error = await self._failure_of_begin(resource, context)
        if isinstance(error, AirError):
            raise error
        if error is not None:
            message = f"{self.name}: `begin` of a new {_type(resource)} failed: {_text(error)}"
            raise InfrastructureError(message) from error

    async def _failure_of_begin(self, resource: _Resource, context: Any) -> BaseException | None:
        begin = getattr(resource.value, "begin", None)
        if not callable(begin):
            return None
        return await self._failure(resource, "begin", functools.partial(begin, context))

    async def _close(self, resource: _Resource) -> None:
        """Closes an object, in the event loop in which it was made if that is not closed. A failure is
        logged."""
        if resource.loop is asyncio.get_running_loop() or resource.loop.is_closed():
            await self._close_here(resource)
            return
        try:
            resource.loop.call_soon_threadsafe(self._start_close, resource)
        except RuntimeError:  # the loop was closed meanwhile
            await self._close_here(resource)
            return
        # The end of the other loop may close the object before.
        limit = self.seconds + _GRACE
        done, _ = await asyncio.wait([asyncio.wrap_future(resource.ended)], timeout=limit)
        if not done:
            _LOG.warning(_UNCLOSED, self.name, _type(resource))

    def _start_close(self, resource: _Resource) -> None:
        task = asyncio.get_running_loop().create_task(self._close_here(resource))
        self._closing.add(task)  # an event loop holds only weak references to its tasks
        task.add_done_callback(self._closing.discard)

    async def _close_here(self, resource: _Resource) -> None:
        """Closes an object in the current event loop, or waits for another call that does. If the call is
        cancelled, a later call closes the object again."""
        with self._lock:
            is_mine = resource in self._alive
            self._alive.discard(resource)
        if not is_mine:
            ended = asyncio.wrap_future(resource.ended)
            await asyncio.wait([ended], timeout=self.seconds + _GRACE)
            return
        method = getattr(resource.value, "close", None)
        try:
            if callable(method):
                await self._failure(resource, "close", method)
        except BaseException:
            with self._lock:
                self._alive.add(resource)
            raise
        resource.ended.set_result(None)

    async def _failure(
        self, resource: _Resource, what: str, method: Callable[[], Any]
    ) -> BaseException | None:
        """Calls a method of an object, or a function for it, within the time limit `seconds`. Returns the
        exception with which it failed, which is also logged; None if it succeeded."""
        failure: BaseException | None = None
        deadline = asyncio.timeout(self.seconds)
        try:
            async with deadline:
                await self._call(what, method)
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            failure = error  # the method's own, such as of a connection that it lost
        except (Exception, BaseExceptionGroup, SystemExit) as error:
            failure = error
        if deadline.expired():
            failure = TimeoutError(f"it took longer than {self.seconds:g} seconds")
        if failure is not None:
            message = "%s: `%s` of a %s failed, so the object is not used further: %s"
            parts = self.name, what, _type(resource), _text(failure)
            _LOG.warning(message, *parts, exc_info=failure)
        return failure

    async def _call(self, what: str, method: Callable[[], Any]) -> None:
        if inspect.iscoroutinefunction(method):
            await method()
            return
        owner, limit = (id(self), what), self.seconds
        # The pool's size limits these threads. A wait for other threads would count towards the time limit.
        work = await threads.start(method, owner, self.name, seconds=limit, urgent=True)
        try:
            outcome = await asyncio.shield(work.outcome)
        finally:
            if not work.outcome.done():
                work.abandon()
        if outcome.error is not None:
            raise RuntimeError(_text(outcome.error)) from outcome.error
        if inspect.isawaitable(outcome.value):
            await outcome.value

    def _close_at_exit(self) -> None:
        """Closes the objects whose event loop has ended without closing them."""
        for resource in list(self._alive) if self._process == os.getpid() else ():
            method = getattr(resource.value, "close", None)
            if inspect.iscoroutinefunction(method):
                _LOG.warning(_UNCLOSED, self.name, _type(resource))
            elif callable(method):
                try:
                    method()
                except Exception:  # the other objects are closed, whatever this one raises
                    _LOG.warning("%s: `close` failed", self.name, exc_info=True)


def _type(resource: _Resource) -> str:
    return type(resource.value).__name__


def _text(error: BaseException) -> str:
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


@atexit.register
def _close_at_exit() -> None:
    for pool in _pools:
        pool._close_at_exit()
