"""Runs the tools of one episode and keeps their states: the objects, such as a shell, that tools keep between
calls."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from typing import Any, Self

from air import json_schema
from air.errors import HangingToolError, InfrastructureError, UserCodeError
from air.tools import threads
from air.tools.base import Reply, Tool, ToolError, ToolResult
from air.tools.resource_pool import ResourcePool
from air.tools.return_values import as_reply
from air.tools.shared_semaphore import Pool
from air.tools.states import close_state, is_cancelled

_LOG = logging.getLogger(__name__)
MOST_ARGUMENTS = 1_000_000
"""The maximum length of a call's arguments as JSON, in characters."""
_LONGEST_ERROR = 500
_NOTE = "\n[… {} characters cut …]\n"
_MOST_THREADS = 4
"""The maximum number of calls of one episode that run in threads at the same time. Further calls wait."""
_GRACE = 10.0
"""The maximum time, in seconds, for which `OpenTools.close` waits for calls that exceeded their time limit
and still run. If `close` is cancelled, this is also the time limit for closing each remaining state."""


class OpenTools:
    """The tools of one episode, made by `ToolSet.open`. Calls of tools that share a state run one after the
    other; other calls may run at the same time."""

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self._tools = tools
        self.states: dict[Hashable, Any] = {}
        """The states of the episode's tools. The key is `Tool.state`: the function that made the state, or
        the `ResourcePool` from which it is borrowed."""
        self.pools: list[Pool] = []
        """The `Pool` objects (semaphores) in which this episode holds a place. They limit how many episodes
        use a tool at the same time."""
        self._locks: dict[Hashable, asyncio.Lock] = {}
        self._interrupted: set[Hashable] = set()
        """The keys of the states that a call left at an unknown point: the call exceeded its time limit, or
        was cancelled."""
        self._threads = asyncio.Semaphore(_MOST_THREADS)
        self._late: dict[asyncio.Future[threads.CallOutcome], str] = {}
        """The calls that exceeded their time limit and may still run in a thread: the future of each call's
        result, with the tool's name."""
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def call(self, name: str, arguments: Any) -> ToolResult:
        """Calls the tool `name` with `arguments` (a dict, or a JSON object as a string) and returns the
        result. Raises InfrastructureError if air or the machine failed, and UserCodeError for an error that
        stops the run, such as HangingToolError. Every other failure gives a result with the status
        `error`."""
        self._check_open()
        given: Mapping[str, Any] = {}
        tool = self._tools.get(name)
        if tool is None:
            known = ", ".join(self._tools) or "none"
            reply = Reply(f"There is no tool {name!r:.80}. The tools are: {known}.", "error")
            return ToolResult(_encodable(name[:80]), given, _encodable(reply.observation), "error")
        try:
            given = _checked(tool, arguments)
        except ValueError as error:
            reply = Reply(f"Wrong arguments of {name}: {error}", "error")
        else:
            async with self._exclusive(tool):
                reply = await self._reply(tool, given)
        text = _cut(_encodable(reply.observation), tool.max_length)
        return ToolResult(name, given, text, reply.status, reply.info)

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("a call after the end of the episode")

    def outcome(self) -> str | None:
        """Returns the episode's final answer as a tool computes it from its state, such as the result of a
        game, with the tool's function `Tool.outcome`. Returns None if no tool has such a function: then the
        agent's own answer is graded."""
        for tool in self._tools.values():
            if tool.outcome is not None:
                return tool.outcome(self.states[tool.state])
        return None

    async def close(self) -> None:
        """Ends the episode: closes the tools' states, and gives back the episode's places in `pools`. A
        second call does nothing. Raises InfrastructureError if a state could not be closed because air or the
        machine failed, and HangingToolError if so many objects of a `ResourcePool` hang that this one could
        not be reset or closed. If the call is cancelled, all states are closed before CancelledError is
        raised."""
        if self._closed:
            return
        self._closed = True
        try:
            await self._close_states()
        finally:
            while self.pools:
                self.pools.pop().release()

    async def _close_states(self) -> None:
        failures: list[InfrastructureError | HangingToolError] = []
        cancelled: asyncio.CancelledError | None = None
        for close in (self._wait_for_late, *map(self._closing, reversed(self.states))):
            try:
                # A close after a cancellation must end soon: perhaps nobody cancels a second time.
                async with asyncio.timeout(None if cancelled is None else _GRACE):
                    await close()
            except asyncio.CancelledError as error:
                if is_cancelled():
                    cancelled = error
                else:  # the state's own, such as of a connection that it lost
                    _LOG.warning("a tool's state could not be closed", exc_info=True)
            except (InfrastructureError, HangingToolError) as error:
                failures.append(error)
            except Exception:
                # Broad on purpose: the code of a tool may raise any exception. An agent can cause it, so
                # it is no failure of ours. The episode's result stands already.
                _LOG.warning("a tool's state could not be closed", exc_info=True)
        if cancelled is not None:
            raise cancelled
        if failures:
            raise failures[0]

    def _closing(self, key: Hashable) -> Callable[[], Awaitable[None]]:
        """Returns an async function that closes the state with this key, or gives it back to its pool."""
        state = self.states[key]
        if not isinstance(key, ResourcePool):
            return functools.partial(close_state, state)
        lock = self._locks.get(key)
        is_known = key not in self._interrupted and not (lock and lock.locked())
        return functools.partial(key.give_back, state, may_reuse=is_known)

    async def _wait_for_late(self) -> None:
        if self._late:
            await asyncio.wait(self._late, timeout=_GRACE)

    @contextlib.asynccontextmanager
    async def _exclusive(self, tool: Tool) -> AsyncIterator[None]:
        """Context manager in which one call runs: until it ends, no other call of the episode can use the
        same tool state, and the call occupies a place in the pool `Tool.calls`, which limits the concurrent
        calls of the tool in all episodes."""
        async with contextlib.AsyncExitStack() as stack:
            if tool.state is not None:
                await stack.enter_async_context(self._locks.setdefault(tool.state, asyncio.Lock()))
            if tool.calls is not None:
                await tool.calls.acquire()
                stack.callback(tool.calls.release)
            self._check_open()  # the episode may have ended while this call waited
            try:
                yield
            except BaseException:  # cancellation too
                self._interrupted.add(tool.state)
                raise

    async def _reply(self, tool: Tool, given: Mapping[str, Any]) -> Reply:
        """Calls a tool's function with the arguments `given` and returns its reply. An exception becomes a
        reply with the status `error`; only InfrastructureError, UserCodeError and a cancellation are
        raised."""
        try:
            return as_reply(tool, await self._run(tool, given))
        except ToolError as error:
            return Reply(str(error), "error")
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            return _failure(tool, error)  # the function's own, such as of a connection that it lost
        except (Exception, BaseExceptionGroup, SystemExit) as error:
            if (raised := _error_to_raise(error)) is not None:
                raise raised from error
            return _failure(tool, error)

    async def _run(self, tool: Tool, given: Mapping[str, Any]) -> Any:
        state = () if tool.state is None else (self.states[tool.state],)
        call = functools.partial(tool.function, *state, **given)
        if not _is_async(tool.function):
            value = await self._in_thread(tool, call)
            return await self._in_time(tool, value) if inspect.isawaitable(value) else value
        return await self._in_time(tool, call())

    async def _in_thread(self, tool: Tool, call: functools.partial[Any]) -> Any:
        """Runs `call` in a thread, and returns its value or raises its exception. Raises ToolError if the
        call exceeds the tool's time limit; its thread is then abandoned, because Python cannot stop it. Also
        raises ToolError if an earlier call of the episode was abandoned and still runs. So an episode has at
        most `_MOST_THREADS` abandoned threads, and an agent that makes calls hang cannot use up the threads
        of other episodes."""
        async with self._threads:
            for late, name in self._late.items():
                if not late.done():
                    raise ToolError(f"An earlier call of {name} still runs.")
            limit = tool.seconds + tool.patience
            work = await threads.start(call, tool.function, tool.name, seconds=limit)
            try:
                outcome = await self._in_time(tool, asyncio.shield(work.outcome))
            finally:
                if not work.outcome.done():
                    self._late[work.outcome] = tool.name
                    work.abandon()
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    async def _in_time(self, tool: Tool, work: Awaitable[Any]) -> Any:
        """Awaits `work`, which is a part of a call, and returns its result. Raises ToolError if it takes
        longer than the tool's time limit and patience together. If that happens, or the call is cancelled,
        notes that the tool's state is interrupted, whatever exception the tool's function makes of it."""
        deadline = asyncio.timeout(tool.seconds + tool.patience)
        try:
            async with deadline:
                return await work
        except TimeoutError:
            if deadline.expired():
                message = f"The call of {tool.name} took longer than {tool.seconds:g} seconds."
                raise ToolError(message) from None
            raise
        finally:
            if deadline.expired() or is_cancelled():
                self._interrupted.add(tool.state)


def _is_async(function: Any) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004 (its kind matters, not that it exists)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def _checked(tool: Tool, arguments: Any) -> dict[str, Any]:
    """Checks the arguments of a call (a dict, or a JSON object as a string) and returns them as keyword
    arguments for the tool's function. Raises ValueError, with a message for the model, if the arguments are
    malformed or do not match the tool's schema."""
    if isinstance(arguments, str):
        if len(arguments) > MOST_ARGUMENTS:
            raise ValueError(f"more than {MOST_ARGUMENTS} characters.")
        arguments = json_schema.parse(arguments or "{}", "the text")
    if not isinstance(arguments, Mapping):
        raise ValueError("they must be a JSON object.")
    arguments = dict(arguments)
    if fault := json_schema.not_plain(arguments):
        raise ValueError(f"the object {fault}.")
    if len(json.dumps(arguments, ensure_ascii=False)) > MOST_ARGUMENTS:
        raise ValueError(f"more than {MOST_ARGUMENTS} characters.")
    if fault := json_schema.fault(arguments, {"type": "object", **tool.parameters}):
        raise ValueError(f"{fault}.")
    properties = tool.parameters.get("properties") or {}
    return {name: _exact(value, properties.get(name)) for name, value in arguments.items()}


def _exact(value: Any, schema: Any) -> Any:
    """Returns the value that a tool's function gets for an argument of the model: `value` itself, but as an
    int if `schema` asks for an integer and `value` is a float. The reason is that JSON allows 3.0 for the
    integer 3."""
    wants = isinstance(schema, Mapping) and schema.get("type") == "integer"
    return int(value) if wants and isinstance(value, float) else value


def _failure(tool: Tool, error: BaseException) -> Reply:
    """Returns a reply that tells the model the type and the message of an exception. The file path of an
    OSError is left out."""
    message = str(error)
    if isinstance(error, OSError) and error.strerror:
        message = error.strerror
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return Reply(f"The tool {tool.name} failed: {text[:_LONGEST_ERROR]}", "error")


def _error_to_raise(error: BaseException) -> InfrastructureError | UserCodeError | None:
    """Returns the InfrastructureError or UserCodeError in `error`, which is an exception or a possibly
    nested exception group; None if it contains neither. The model must not see these two, because it did not
    cause them."""
    if isinstance(error, InfrastructureError | UserCodeError):
        return error
    if isinstance(error, BaseExceptionGroup):
        inner = map(_error_to_raise, error.exceptions)
        return next((one for one in inner if one is not None), None)
    return None


def _encodable(text: str) -> str:
    """Returns `text` with each lone surrogate replaced by `?`, because surrogates cannot be encoded as
    UTF-8."""
    return text.encode("utf-8", "replace").decode()


def _cut(text: str, most: int) -> str:
    """Returns `text`, shortened to `most` characters if it is longer: a note with the number of missing
    characters then replaces its middle."""
    if len(text) <= most:
        return text
    room = max(0, most - len(_NOTE.format(len(text))))
    note = _NOTE.format(len(text) - room)
    return text[: room // 2] + note + text[len(text) - (room - room // 2) :]
