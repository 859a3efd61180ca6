"""What remains of a stream whose client leaves before the first byte: no watched folder, and no open file.
air's real helper program runs, in a process box."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message

from air.sandbox import open_box
from air.sandbox.contract.box import Box, BoxSpec
from air.sandbox.contract.running_command import RunningCommand
from air.serve.e2b.envd import connect_protocol, files, filesystem
from air.serve.e2b.envd.filesystem import MOST_WATCHERS, watchers_of
from air.serve.e2b.errors import RpcError
from air.serve.e2b.programs.files import MOST_OPEN
from air.serve.e2b.sandbox import Sandbox, SandboxSettings

SPEC = BoxSpec(provider="process")
HEADERS = [(b"content-type", b"application/connect+json")]
Call = Callable[[Sandbox, Request], Awaitable[Response]]


class OneAccount:
    """A box whose commands all run as its own account: a process box has no others."""

    def __init__(self, box: Box) -> None:
        self._box = box

    async def start(self, argv: list[str], **_: Any) -> RunningCommand:
        return await self._box.start(argv, stdin=True)


@asynccontextmanager
async def opened() -> AsyncIterator[Sandbox]:
    async with await open_box(SPEC) as box:
        sandbox = Sandbox(SandboxSettings("any"), SPEC)
        sandbox.box = cast(Box, OneAccount(box))
        try:
            yield sandbox
        finally:
            await sandbox.stop_programs()


async def left(sandbox: Sandbox, call: Call, scope: dict[str, Any], body: bytes = b"") -> None:
    """Makes a call whose client reads nothing, and leaves before its connection takes the first byte of the
    answer. Waits for the cleanup."""
    messages: list[Message] = [{"type": "http.request", "body": body}]

    async def receive() -> Message:
        return messages.pop() if messages else {"type": "http.disconnect"}

    async def send(_: Message) -> None:
        await asyncio.Event().wait()

    scope = {"type": "http", "asgi": {"spec_version": "2.3"}, **scope}
    response = await call(sandbox, Request(scope, receive))
    assert isinstance(response, StreamingResponse)  # not a refusal
    await response(scope, receive, send)
    while sandbox.tasks:
        await next(iter(sandbox.tasks))


async def test_a_watch_whose_client_left_before_its_start_is_dropped() -> None:
    body = connect_protocol.frame({"path": "/"})
    async with opened() as sandbox:
        for _ in range(MOST_WATCHERS + 1):
            scope = {"method": "POST", "path": "/", "headers": HEADERS}
            await left(sandbox, filesystem.watch_folder, scope, body)
        await watchers_of(sandbox).add("root", {"path": "/"})


async def test_a_watch_with_a_wrong_time_limit_is_not_begun() -> None:
    scope = {"type": "http", "headers": [*HEADERS, (b"connect-timeout-ms", b"soon")]}

    async def receive() -> Message:
        return {"type": "http.request", "body": connect_protocol.frame({"path": "/"})}

    async with opened() as sandbox:
        refused = await filesystem.watch_folder(sandbox, Request(scope, receive))
        assert b"Connect-Timeout-Ms" in refused.body
        for _ in range(MOST_WATCHERS):
            await watchers_of(sandbox).add("root", {"path": "/"})


async def test_a_file_whose_client_left_before_its_start_is_closed() -> None:
    query = b"path=/etc/passwd&username=root"
    scope = {"method": "GET", "path": "/files", "query_string": query, "headers": []}
    async with opened() as sandbox:
        for _ in range(MOST_OPEN + 1):
            await left(sandbox, files.files, scope)


async def test_requests_at_once_do_not_exceed_the_limit_on_watchers() -> None:
    message = {"path": "/"}
    async with opened() as sandbox:
        works = [
            filesystem.create_watcher(sandbox, "root", message) for _ in range(MOST_WATCHERS + 2)
        ]
        answers = await asyncio.gather(*works, return_exceptions=True)
        refused = [one.code for one in answers if isinstance(one, RpcError)]
        assert refused == ["resource_exhausted"] * 2
        created = next(one for one in answers if isinstance(one, dict))
        await filesystem.remove_watcher(sandbox, "root", created)
        await filesystem.create_watcher(sandbox, "root", message)
