"""Reads and writes the Connect protocol (remote calls over HTTP) with JSON messages: single calls, streams of
messages, and time limits. The services of envd (E2B's program in a sandbox) use it.

In a stream, each message is one flag byte, the length of the JSON in four bytes (big-endian), and the JSON.
The last message has the flag 2, and contains an error or nothing.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from air import json_lines
from air.serve.e2b.errors import RpcError, SandboxGone
from air.serve.e2b.request_bodies import MOST_BYTES

Message = dict[str, Any]
END = 2
_HEAD = struct.Struct(">BI")
_STREAM = "application/connect+json"


def frame(message: Message, flag: int = 0) -> bytes:
    """Returns one message as the bytes that represent it in a stream of the Connect protocol (remote calls
    over HTTP). `flag` is the message's flag byte: 0, or 2 for the last message."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return _HEAD.pack(flag, len(body)) + body


async def frames(request: Request) -> AsyncIterator[Message]:
    """Yields the messages in the body of a request whose body is a stream of the Connect protocol (remote
    calls over HTTP). Raises RpcError if the stream is malformed."""
    if request.headers.get("content-type", "").split(";")[0] != _STREAM:
        raise RpcError("invalid_argument", f"this stream needs the content type {_STREAM}")
    buffer = bytearray()
    async for piece in request.stream():
        buffer += piece
        while len(buffer) >= _HEAD.size:
            flag, size = _HEAD.unpack_from(buffer)
            if size > MOST_BYTES:
                raise RpcError("resource_exhausted", f"a message is larger than {MOST_BYTES} bytes")
            if len(buffer) < _HEAD.size + size:
                break
            body = bytes(buffer[_HEAD.size : _HEAD.size + size])
            del buffer[: _HEAD.size + size]
            if flag & END:
                return
            if flag:
                raise RpcError("unimplemented", "compressed messages are not served")
            yield decoded(body)


async def only_message(request: Request) -> Message:
    """Reads the message of a request whose body is a stream with a single message. Raises RpcError unless
    there is exactly one."""
    only: Message | None = None
    async for message in frames(request):
        if only is not None:
            raise RpcError("invalid_argument", "expected one message, got more")
        only = message
    if only is None:
        raise RpcError("invalid_argument", "expected one message, got none")
    return only


async def call_message(request: Request) -> Message:
    """Reads the message of a request for a single call, whose body is JSON. Raises RpcError if the body is
    not a JSON object, or is too large."""
    kind = request.headers.get("content-type", "").split(";")[0]
    if kind != "application/json":
        raise RpcError("unimplemented", f"only JSON is served, not the content type {kind!r}")
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MOST_BYTES:
            raise RpcError("resource_exhausted", f"a message is larger than {MOST_BYTES} bytes")
    return decoded(bytes(body))


def decoded(body: bytes) -> Message:
    """Parses one JSON message of the Connect protocol (an empty `body` counts as `{}`). Raises RpcError if
    `body` is not a JSON object, or if a response or a helper program could not repeat a part of it: Python
    reads the number NaN and halves of surrogate pairs, and nests more deeply than it writes."""
    try:
        message = json_lines.decode(body or b"{}")
        json.dumps(message, allow_nan=False, ensure_ascii=False).encode()
    except RecursionError:
        raise RpcError("invalid_argument", "a message is nested too deeply") from None
    except ValueError as error:
        raise RpcError("invalid_argument", f"a message is not JSON: {error}") from None
    if not isinstance(message, dict):
        raise RpcError("invalid_argument", "a message is not a JSON object")
    return message


def refuse_unknown(message: Message, *known: str) -> None:
    """Raises RpcError if `message` has a field whose name is not in `known`, because air would ignore this
    field."""
    if unknown := sorted(message.keys() - set(known)):
        raise RpcError("unimplemented", f"field {unknown[0]!r} is not served by air")


def deadline(request: Request) -> float | None:
    """Returns the time limit of a call in seconds, counted from its start, from the request header
    `Connect-Timeout-Ms`; None without this header. Raises RpcError if the header is malformed."""
    text = request.headers.get("connect-timeout-ms")
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 10:
        raise RpcError("invalid_argument", f"Connect-Timeout-Ms: {text!r} is not a number")
    return int(text) / 1000


def end_of(seconds: float | None) -> float | None:
    """Returns the time that is `seconds` from now, on the event loop's clock; None if `seconds` is None.

    An async generator passes this time to `asyncio.timeout_at` at each of its waits. One `asyncio.timeout`
    around the whole generator would not work, because its steps may run in different asyncio tasks.
    """
    return None if seconds is None else asyncio.get_running_loop().time() + seconds


def user_of(request: Request) -> str:
    """Returns the name of the account as which a call runs: the user name in the header `Authorization:
    Basic`, or `user` without this header. Raises RpcError if the header is malformed."""
    scheme, _, value = request.headers.get("authorization", "").partition(" ")
    if not scheme:
        return "user"
    try:
        name, _, _ = base64.b64decode(value, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        scheme = ""
    if scheme.lower() != "basic":
        raise RpcError("unauthenticated", "Authorization: expected `Basic` with a user's name")
    return name or "user"


class ClosingResponse(StreamingResponse):
    """A streaming response that calls `at_end` when it ends, also if its body never began because the client
    had disconnected before. A generator's own `finally` would not run then."""

    def __init__(
        self, body: AsyncIterator[bytes], at_end: Callable[[], object], **options: Any
    ) -> None:
        super().__init__(body, **options)
        self._at_end = at_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._at_end()


def stream(
    request: Request,
    events: AsyncIterator[Message],
    first: Message,
    *,
    keepalive: Message | None = None,
    at_end: Callable[[], object] = lambda: None,
) -> Response:
    """Returns the HTTP response to a call that streams: the message `first`, then the messages of `events`.

    If the request has the header `Keepalive-Ping-Interval`, a ping is sent whenever `events` has had no
    message for the number of seconds in this header. The ping is the message `keepalive` or, if this is None,
    `{"event": {"keepalive": {}}}`. If `events` raises RpcError or SandboxGone, the error becomes the last
    message. If the client disconnects, `events` is closed. `at_end` is called when the response ends, also if
    `events` never began.
    """
    text = request.headers.get("keepalive-ping-interval", "")
    interval = float(text) if text.isascii() and text.isdigit() and int(text) else None

    ping = keepalive or {"event": {"keepalive": {}}}

    async def body() -> AsyncIterator[bytes]:
        yield frame(first)
        try:
            async for message in _with_pings(events, interval, ping):
                yield frame(message)
        except RpcError as error:
            yield frame({"error": error.body}, END)
        except SandboxGone as error:
            text = f"the connection to sandbox {error.sandbox_id} ended before the stream completed"
            yield frame({"error": RpcError("unavailable", text).body}, END)
        else:
            yield frame({}, END)

    return ClosingResponse(body(), at_end, media_type=_STREAM)


def stream_error(error: RpcError) -> Response:
    """Returns the HTTP response to a streaming call that failed before its first message. The response is a
    stream with the error as its only message."""
    return Response(frame({"error": error.body}, END), media_type=_STREAM)


async def _with_pings(
    events: AsyncIterator[Message], interval: float | None, ping: Message
) -> AsyncIterator[Message]:
    """Yields the messages of `events`, and also `ping` whenever `events` had no message for `interval`
    seconds. If `interval` is None, there are no pings."""
    if interval is None:
        async for message in events:
            yield message
        return
    following: asyncio.Task[Message] | None = None
    try:
        while True:
            following = following or asyncio.ensure_future(_next(events))
            done, _ = await asyncio.wait([following], timeout=interval)
            if not done:
                yield ping
                continue
            task, following = following, None
            try:
                yield task.result()
            except _NoMore:
                return
    finally:
        if following is not None:
            following.cancel()
            await asyncio.wait([following])


class _NoMore(Exception):
    """Raised instead of StopAsyncIteration when an async iterator has ended, because an asyncio task must not
    raise StopAsyncIteration."""


async def _next(events: AsyncIterator[Message]) -> Message:
    try:
        return await anext(events)
    except StopAsyncIteration:
        raise _NoMore from None
