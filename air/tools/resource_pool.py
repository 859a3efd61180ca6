"""Defines `ResourcePool`: expensive objects, such as browser processes, that episodes borrow one after the
other and that are reset in between."""

from __future__ import annotations

import asyncio
import atexit
import functools
import inspect
import math
import os
import weakref
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any

from air.aio import wait_shielded
from air.errors import AirError, ConfigError, InfrastructureError, UsageError, UserCodeError
from air.tools.pooled_object import PooledObject, close_in_threads, error_text
from air.tools.shared_semaphore import Pool, new_number
from air.tools.states import make_state

_GRACE = 10.0
"""The maximum time, in seconds, for which a cancelled episode waits until a factory that runs in a thread has
ended, so that the new object can be closed."""
_pools: weakref.WeakSet[ResourcePool] = weakref.WeakSet()


@dataclass(eq=False)
class _LoopState:
    """What a pool keeps for one event loop. It is changed only in this loop."""

    places: Pool
    """The semaphore that limits how many episodes borrow an object. An episode holds a place from before
    `borrow` until after `give_back`."""
    idle: list[PooledObject] = field(default_factory=list)
    """The objects that no episode borrows, the one that was used last at the end. Each occupies a place that
    is free, so there are at most as many objects as places. The exceptions: an object whose factory exceeded
    its time limit is closed when it is made, and an object whose `close` failed may still exist."""
    objects: dict[int, PooledObject] = field(default_factory=dict)
    """All objects that are not closed, by the `id` of the value."""
    end: AsyncGenerator[None] | None = None
    """The async generator whose end closes the objects (see `_until_end`)."""

    def has(self, resource: PooledObject) -> bool:
        """Returns whether the object is not closed."""
        return self.objects.get(id(resource.value)) is resource


class ResourcePool:
    """A pool of expensive objects, such as browser processes, that episodes borrow one after the other. Use
    it as the `state` of tools:

        browsers = ResourcePool(Browser, size=4)

        @tool(state=browsers)
        async def open_page(browser: Browser, url: str) -> str: ...

    All tools of an episode with the same pool share one object. An episode waits at its start for a place,
    in the order of arrival, and makes an object if no idle one is left.

    There are at most `size` objects in each event loop of this process. Objects are used only in the loop in
    which they were made. air plays all episodes of a process in one loop.

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

    The objects of an event loop are closed at its end, as `asyncio.run` ends it. Objects of a loop that was
    not ended this way are closed at the end of the process, if their `close` is not async.

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
        self.size = size
        self._check()
        self._number = new_number()
        self._states: dict[tuple[int, asyncio.AbstractEventLoop], _LoopState] = {}
        """The state of each event loop, by the process's id and the loop: a process that `os.fork` made
        begins anew, and leaves the objects to its parent."""
        _pools.add(self)

    def _check(self) -> None:
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
        counts = {"size": self.size, "most_uses": 1 if self.most_uses is None else self.most_uses}
        for key, count in counts.items():
            if type(count) is not int or count < 1:
                raise ConfigError(f"{key} must be a positive integer", where=self.name)
        is_number = isinstance(self.seconds, int | float) and type(self.seconds) is not bool
        if not (is_number and 0 < self.seconds < math.inf):
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

    @property
    def places(self) -> Pool:
        """The semaphore that limits how many episodes in the current event loop borrow an object. Its number
        is the same in all loops."""
        return self._here().places

    def _here(self) -> _LoopState:
        """Returns the state of the current event loop, and makes it at the first use."""
        key = os.getpid(), asyncio.get_running_loop()
        if key not in self._states:
            for other, state in list(self._states.items()):
                if other[1].is_closed() and not state.objects:
                    self._states.pop(other, None)
            self._states[key] = _LoopState(Pool(self.size, self._number))
        return self._states[key]

    async def borrow(self, context: Any, name: str, seconds: float) -> Any:
        """Returns an object for the episode that `context`, a `ToolContext`, describes. The caller holds a
        place in `places`, and returns the object with `give_back` before the place. A new object is made for
        the tool `name` within `seconds`. An old object whose `begin` fails is closed before.

        Raises InfrastructureError if no object can be made or prepared, or not in time. Raises UserCodeError
        if a new object cannot be reset or is already in the pool, and HangingToolError if so many earlier
        calls of the factory or a method still run that no further call can begin. An AirError of the factory,
        or of `begin` of a new object, is raised unchanged."""
        here = self._here()
        resource = here.idle.pop() if here.idle else None
        try:
            if resource is not None:
                is_ending = resource.ending is not None
                if is_ending or await self._failure_of_begin(resource, context) is not None:
                    await self._close(here, resource)
                    resource = None
            if resource is None:
                resource = await self._new(here, name, seconds)
                if (error := await self._failure_of_begin(resource, context)) is not None:
                    raise error
        except BaseException:  # cancellation too
            if resource is not None:
                await self._close(here, resource)
            raise
        resource.uses += 1
        return resource.value

    async def give_back(self, value: Any, *, may_reuse: bool) -> None:
        """Ends an episode's use of the object `value`: resets it for the next episode, or closes it. If not
        `may_reuse`, it is always closed. Failures are logged. If the call is cancelled, the object is closed
        before CancelledError is raised.

        Raises HangingToolError if so many earlier calls of `reset` or `close` still run that no further call
        can begin, and InfrastructureError if this machine cannot start a thread."""
        here = self._here()
        resource = here.objects.get(id(value))
        if resource is None:  # it was closed at the end of its event loop
            return
        is_used_up = self.most_uses is not None and resource.uses >= self.most_uses
        is_clean = False
        try:
            if may_reuse and not is_used_up and resource.ending is None:
                reset = value.reset if self.reset is None else functools.partial(self.reset, value)
                is_clean = await resource.failure("reset", reset) is None
        finally:
            if is_clean and resource.ending is None:
                here.idle.append(resource)
            else:
                await self._close(here, resource)

    async def close(self) -> None:
        """Closes all idle objects of the current event loop. Until they are closed, they keep their places.
        Failures are logged. The pool can be used further: the next episode makes a new object. Raises
        HangingToolError and InfrastructureError as `give_back` does."""
        here = self._here()
        try:
            await self._close(here, *here.idle)
        finally:
            here.idle = list(filter(here.has, here.idle))

    async def _new(self, here: _LoopState, name: str, seconds: float) -> PooledObject:
        """Makes an object (see `borrow`), which will be closed at the end of the current event loop."""
        if here.end is None:
            here.end = self._until_end(here)
            await anext(here.end)

        async def close(value: Any) -> None:
            await self._close(here, self._added(here, value))

        value = await make_state(self.factory, (), name, seconds, close=close, grace=_GRACE)
        resource = self._added(here, value)
        try:
            self._check_reset(value, type(value).__name__, UserCodeError)
        except UserCodeError:
            await self._close(here, resource)
            raise
        return resource

    def _added(self, here: _LoopState, value: Any) -> PooledObject:
        if any(id(value) in state.objects for state in list(self._states.values())):
            message, remedy = "the factory returned the same object twice", "make a new one"
            raise UserCodeError(message, where=self.name, remedy=remedy)
        resource = here.objects[id(value)] = PooledObject(value, self, self.name, self.seconds)
        return resource

    async def _until_end(self, here: _LoopState) -> AsyncGenerator[None]:
        """Yields once, and closes the objects of the current event loop at its end: `asyncio.run` closes the
        open async generators of a loop after it has cancelled the loop's tasks."""
        process = os.getpid()
        try:
            yield
        finally:
            here.end = None
            if os.getpid() == process:
                await self._close(here, *here.objects.values())

    async def _failure_of_begin(self, resource: PooledObject, context: Any) -> AirError | None:
        """Prepares an object for an episode. Returns the error that a failure means if the object is new."""
        begin = getattr(resource.value, "begin", None)
        if not callable(begin):
            return None
        error = await resource.failure("begin", functools.partial(begin, context))
        if error is None or isinstance(error, AirError):
            return error
        message = f"{self.name}: `begin` of a new {resource.kind} failed: {error_text(error)}"
        made = InfrastructureError(message)
        made.__cause__ = error
        return made

    async def _close(self, here: _LoopState, *resources: PooledObject) -> None:
        """Closes objects at the same time, each only once, and waits until they are closed, also if the call
        is cancelled. A close that was cancelled, or could not begin, is repeated. Failures are logged; raises
        HangingToolError and InfrastructureError as `give_back` does."""
        endings: list[asyncio.Task[None]] = []
        for one in resources:
            if one.ending is None or (one.ending.done() and here.has(one)):
                one.ending = asyncio.get_running_loop().create_task(self._end(here, one))
            endings.append(one.ending)
        for outcome in await wait_shielded(asyncio.gather(*endings, return_exceptions=True)):
            if outcome is not None:
                raise outcome

    async def _end(self, here: _LoopState, resource: PooledObject) -> None:
        method = getattr(resource.value, "close", None)
        if callable(method):
            await resource.failure("close", method)
        here.objects.pop(id(resource.value), None)

    def _close_at_exit(self) -> None:
        """Closes the objects whose event loop has ended without closing them."""
        own = [state for key, state in list(self._states.items()) if key[0] == os.getpid()]
        close_in_threads([one for state in own for one in state.objects.values()], self.seconds)


@atexit.register
def _close_at_exit() -> None:
    for pool in list(_pools):
        pool._close_at_exit()
