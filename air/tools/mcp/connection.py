"""Defines `Connection`, a connection to a server of the Model Context Protocol (MCP), with time and size
limits. It is a session of the package `mcp` that sends its messages over a `Channel` (a transport).

One asyncio task opens and closes the session; any task may send requests. If the server sends something wrong
or does not answer, the methods of `Connection` raise `ConnectionLost` or `ErrorResponse`. Infrastructure
errors (the box, which is the server's sandbox, or this machine failed) are raised unchanged.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from air.aio import cancel_and_wait
from air.errors import AirError, MissingError

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from mcp.client import ClientSession
    from mcp.client._transport import TransportStreams
    from mcp_types import CallToolResult, Tool

T = TypeVar("T")
MESSAGE_BYTES = 4 * 2**20
"""The maximum size of one message from an MCP server, in bytes."""
CALL_BYTES = 16 * 2**20
"""The maximum number of bytes that an MCP server may send during one call. Bytes that it sends between two
calls count towards the call before or the call after."""
MOST_PAGES, MOST_TOOLS = 20, 256
_TEXT = 500
_UNWIND_SECONDS = 2.0
_BROKEN = ("Connection closed", "SSE stream ended", "Session terminated")
"""The beginnings of the error messages with which the package `mcp` reports a broken connection or a session
that the server does not know. The error codes do not distinguish these cases, because the errors that a
server itself reports have the same codes."""


class ErrorResponse(Exception):
    """Raised if an MCP server answered a request with an error, or with something that is not a valid
    response."""


class ConnectionLost(Exception):
    """Raised if an MCP server did not answer in time, ended the connection, or violated the protocol."""


class Channel(Protocol):
    """The interface of a transport to one MCP server (the pipes of a program, or HTTP). A channel opens the
    message streams of a connection and limits how much the server may send."""

    reason: str
    """The reason why the connection broke; empty if it did not break or the reason is unknown."""
    status: str
    """The status line (code and phrase) of the last HTTP response with an error code (400 or higher); empty
    if there was none."""

    broken: asyncio.Event
    """An event that is set if a request could not be sent, so that no response will come."""

    def streams(self) -> AbstractAsyncContextManager[TransportStreams]:
        """Returns a context manager that opens the incoming and outgoing message streams, and closes them
        at its end."""
        ...

    def listen(self) -> None:
        """Called when a request begins: allows the server to send up to `CALL_BYTES` from now on."""
        ...

    def pause(self) -> None:
        """Called when a request ends: may stop reading from the server until the next `listen`."""
        ...


def check_package() -> None:
    """Raises MissingError if the package `mcp` is not installed or is older than version 2."""
    try:
        import mcp.client.streamable_http  # noqa: F401
        import mcp_types  # noqa: F401
    except ImportError as error:
        raise MissingError(
            f"MCP servers need the package `mcp` of version 2 ({error})",
            where="tools",
            remedy="run `pip install 'air-agent[tools]'`",
        ) from None


class Connection:
    """A session with one MCP server. `open` starts the session and `close` ends it."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._stop = asyncio.Event()
        self._session: asyncio.Future[ClientSession] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        """Whether `open` was called and the session is not known to have ended."""
        return self._task is not None and not self._task.done()

    def end(self) -> str:
        """Returns the reason why the session ended, as one line; an empty string while it runs. Raises the
        infrastructure error that ended it, if there was one."""
        try:
            self._raise_why_lost()
        except ConnectionLost as error:
            return short(str(error))
        return ""

    async def open(self, seconds: float) -> None:
        """Connects to the server and performs the protocol's initialisation, within `seconds`. Raises
        ConnectionLost or ErrorResponse if that fails."""
        self._task = asyncio.create_task(self._run(), name="MCP session")
        try:
            await self._request(seconds, lambda session: session.initialize())
        except BaseException:  # cancellation too: nobody else would close it
            await self.close()
            raise

    async def tools(self, seconds: float) -> list[Tool]:
        """Returns the tools that the server lists. Raises ConnectionLost or ErrorResponse if the server does
        not list them within `seconds`, and ErrorResponse if the list is too long."""
        from mcp_types import PaginatedRequestParams

        async def listed(session: ClientSession) -> list[Tool]:
            found: list[Tool] = []
            cursor = None
            for _ in range(MOST_PAGES):
                page = await session.list_tools(
                    params=PaginatedRequestParams(cursor=cursor) if cursor else None
                )
                found += page.tools
                cursor = page.next_cursor
                if not cursor or len(found) > MOST_TOOLS:
                    break
            if cursor or len(found) > MOST_TOOLS:
                raise ErrorResponse(f"it offers more than {MOST_TOOLS} tools, or many empty pages")
            return found

        return await self._request(seconds, listed)

    async def call(self, name: str, arguments: dict[str, Any], seconds: float) -> CallToolResult:
        """Calls the tool `name` of the server and returns the result. Raises ConnectionLost or ErrorResponse
        if there is no valid result within `seconds`."""
        from mcp_types import CallToolRequest, CallToolRequestParams, CallToolResult

        # Not `ClientSession.call_tool`: it asks for the list of tools anew, and refuses results that break
        # the tool's output schema, which are the model's to see.
        params = CallToolRequestParams(name=name, arguments=arguments)
        request = CallToolRequest(params=params)
        return await self._request(
            seconds, lambda session: session.send_request(request, CallToolResult)
        )

    async def close(self) -> None:
        """Ends the session. A second call does nothing."""
        self._stop.set()
        if self._task is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(5):
                    await asyncio.wait([self._task])
            await cancel_and_wait(self._task)
        self._session.cancel()

    async def _run(self) -> None:
        from mcp.client import ClientSession

        async with (
            self._channel.streams() as (incoming, outgoing),
            ClientSession(incoming, outgoing) as session,
        ):
            self._session.set_result(session)
            await self._stop.wait()

    async def _request(self, seconds: float, work: Callable[[ClientSession], Awaitable[T]]) -> T:
        """Sends a request to the server and returns the result of `work`: a function that gets the session
        and sends the request through it. Raises ConnectionLost if there is no result within `seconds` or the
        connection ends first, and ErrorResponse if the server responds with an error or with an invalid
        response."""
        assert self._task is not None

        async def working() -> T:
            return await work(await asyncio.shield(self._session))

        self._channel.listen()
        request = asyncio.create_task(working())
        broken = asyncio.create_task(self._channel.broken.wait())
        try:
            waiting = (request, broken, self._task)
            await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if not request.done():
                self._raise_why_lost()
                if broken.done():
                    raise ConnectionLost(self._channel.reason)
                raise ConnectionLost(f"it did not answer within {seconds:g} s")
            return await self._result(request)
        finally:
            self._channel.pause()
            await cancel_and_wait(request)
            await cancel_and_wait(broken)

    async def _result(self, request: asyncio.Task[T]) -> T:
        from mcp.shared.exceptions import MCPError
        from pydantic import ValidationError

        error = request.exception()
        if error is None:
            return request.result()
        if isinstance(error, AirError | ErrorResponse):
            raise error
        if isinstance(error, MCPError):
            if error.message.startswith(_BROKEN) or self._channel.reason:
                assert self._task is not None
                await asyncio.wait([self._task], timeout=_UNWIND_SECONDS)  # it ends with the reason
                self._raise_why_lost()
                raise ConnectionLost(self._channel.reason or short(error.message))
            status = f" ({self._channel.status})" if self._channel.status else ""
            raise ErrorResponse(short(error.message + status))
        if isinstance(error, ValidationError | RuntimeError | ValueError):
            raise ErrorResponse("it answered with what is no answer to the request")
        self._raise_why_lost()
        raise ConnectionLost(short(f"{type(error).__name__}: {error}"))

    def _raise_why_lost(self) -> None:
        """Raises an exception if the session has ended: the infrastructure error that ended it or, if there
        is none, ConnectionLost with the reason. Does nothing while the session runs."""
        if self._task is None or not self._task.done():
            return
        error = None if self._task.cancelled() else self._task.exception()
        for one in leaves(error):
            if isinstance(one, AirError):
                raise one
        causes = [f"{type(one).__name__}: {one}" for one in leaves(error)]
        lost = [str(one) for one in leaves(error) if isinstance(one, ConnectionLost)]
        raise ConnectionLost(
            self._channel.reason or short("; ".join(lost or causes) or "it hung up")
        )


def leaves(error: BaseException | None) -> list[BaseException]:
    """Returns the exceptions in `error` as a flat list: all exceptions in an exception group, which may be
    nested; only `error` if it is not a group; an empty list if it is None."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in leaves(one)]
    return [] if error is None else [error]


def short(text: str) -> str:
    """Returns `text`, which comes from a server, as one line of limited length. Characters that are not
    printable are replaced by escapes such as `\\x1b`, because the line may be printed to a terminal. Lone
    surrogates, which cannot be encoded as UTF-8, are replaced by `?`."""
    line = " ".join(text[: 4 * _TEXT].split()).encode("utf-8", "replace").decode()
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
    return line if len(line) <= _TEXT else f"{line[:_TEXT]}…"
