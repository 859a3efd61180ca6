"""Serves the service `filesystem.Filesystem` of envd (E2B's program in a sandbox): remote calls with which
clients list, move, remove and watch files and folders."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from air.errors import AirError, BoxDiedError
from air.serve.e2b.envd import connect_protocol
from air.serve.e2b.envd.connect_protocol import Message
from air.serve.e2b.errors import RpcError, SandboxGone
from air.serve.e2b.helper_program import Program
from air.serve.e2b.sandbox import Sandbox

MOST_EVENTS = 10_000
"""The maximum number of changes that the server stores for one watched folder until the client fetches
them."""
MOST_WATCHERS = 64
"""The maximum number of folders that the clients of one sandbox watch at the same time, by streams and by
`CreateWatcher` together."""
_FIRST, _LAST = -62_135_596_800, 253_402_300_799
"""The earliest and the latest time, in epoch seconds, that Python's `datetime` can represent (the years 1 to
9999). If a file's modification time lies outside this range, clients get the nearest of these two times."""
Call = Callable[[Sandbox, Request], Awaitable[Response]]


def entry_of(entry: dict[str, Any]) -> Message:
    """Converts the description of a file or folder from the form of air's helper program in the box to the
    form of envd (E2B's program in a sandbox): `modified` (epoch seconds) becomes `modifiedTime` (ISO 8601).
    Also removes the key `modified` from the argument `entry`."""
    seconds = min(max(float(entry.pop("modified")), _FIRST), _LAST)
    modified = datetime.fromtimestamp(seconds, UTC)
    return entry | {"modifiedTime": modified.isoformat().replace("+00:00", "Z")}


async def stat(files: Program, user: str, message: Message) -> Message:
    connect_protocol.refuse_unknown(message, "path")
    answer, _ = await files.ask("stat", user=user, path=_text(message, "path"))
    return {"entry": entry_of(answer["entry"])}


async def make_folder(files: Program, user: str, message: Message) -> Message:
    connect_protocol.refuse_unknown(message, "path")
    answer, _ = await files.ask("mkdir", user=user, path=_text(message, "path"))
    return {"entry": entry_of(answer["entry"])}


async def move(files: Program, user: str, message: Message) -> Message:
    connect_protocol.refuse_unknown(message, "source", "destination")
    source, destination = _text(message, "source"), _text(message, "destination")
    answer, _ = await files.ask("move", user=user, source=source, destination=destination)
    return {"entry": entry_of(answer["entry"])}


async def list_folder(files: Program, user: str, message: Message) -> Message:
    connect_protocol.refuse_unknown(message, "path", "depth")
    depth = message.get("depth") or 1
    if not isinstance(depth, int) or depth < 1:
        raise RpcError("invalid_argument", "depth should be at least 1")
    answer, _ = await files.ask("entries", user=user, path=_text(message, "path"), depth=depth)
    return {"entries": [entry_of(entry) for entry in answer["entries"]]}


async def remove(files: Program, user: str, message: Message) -> Message:
    connect_protocol.refuse_unknown(message, "path")
    await files.ask("remove", user=user, path=_text(message, "path"))
    return {}


class Watcher:
    """Stores the changes in one watched folder of a sandbox until the client fetches them."""

    def __init__(self) -> None:
        self.changes: deque[Message] = deque()
        self.news = asyncio.Event()
        self.error: AirError | None = None

    def put(self, change: Message) -> None:
        """Stores a change. But if `MOST_EVENTS` changes are stored already, or if `change` says that
        inotify's queue in the box overflowed, the change is lost: once the stored changes have been fetched,
        `take` raises RpcError."""
        if "overflow" in change or len(self.changes) >= MOST_EVENTS:
            self.error = RpcError("resource_exhausted", "changes were lost: there were too many")
        elif "entry" in change:
            self.changes.append(change | {"entry": entry_of(change["entry"])})
        else:
            self.changes.append(change)
        self.news.set()

    def take(self) -> list[Message]:
        """Returns the changes since the last call, and deletes them from the watcher. If there are none, but
        `error` is set (changes were lost, or the helper program ended), raises this error."""
        changes = list(self.changes)
        self.changes.clear()
        self.news.clear()
        if not changes and self.error is not None:
            raise self.error
        return changes


class Watchers:
    """The watched folders of one sandbox. air's helper program `files` in the sandbox's box (container)
    reports the changes, and this object gives each change to the `Watcher` of its folder."""

    def __init__(self, files: Program) -> None:
        self._files = files
        self._watchers: dict[int, Watcher] = {}
        self._begun = 0
        """The number of calls of `add` that have not created their watcher yet."""
        self._early: deque[tuple[int, Message]] = deque(maxlen=1000)
        self.polled: dict[str, int] = {}
        """The watchers that clients created with the call `CreateWatcher`: maps the id that the client got to
        the watcher's number. The client uses the id to ask for changes."""
        files.events = self

    async def event(self, header: dict[str, Any]) -> None:
        """Receives one change from the helper program, and gives it to the `Watcher` with the number
        `header["watch"]`. If `add` has not created this watcher yet, stores the change, and `add` then gives
        it to the watcher."""
        if watcher := self._watchers.get(header["watch"]):
            watcher.put(header["event"])
        else:
            self._early.append((header["watch"], header["event"]))

    def lost(self, error: AirError) -> None:
        """Makes all watchers fail with this error. `Program` calls this method when air's helper program in
        the box has ended."""
        for watcher in self._watchers.values():
            watcher.error = error
            watcher.news.set()

    async def add(self, user: str, message: Message) -> tuple[int, Watcher]:
        """Starts to watch the folder `path` that a request's message names, as the account `user`. Returns
        the number and the object of the new watcher. Raises RpcError if the sandbox has `MOST_WATCHERS`
        watchers already."""
        connect_protocol.refuse_unknown(
            message, "path", "recursive", "includeEntry", "include_entry", "allowNetworkMounts",
            "allow_network_mounts",
        )  # fmt: skip
        entry = bool(message.get("includeEntry") or message.get("include_entry"))
        recursive = bool(message.get("recursive"))
        path = _text(message, "path")
        if len(self._watchers) + self._begun >= MOST_WATCHERS:
            text = f"the sandbox watches {MOST_WATCHERS} folders already: remove a watcher first"
            raise RpcError("resource_exhausted", text)
        self._begun += 1
        try:
            answer, _ = await self._files.ask(
                "watch", user=user, path=path, recursive=recursive, include_entry=entry
            )
        finally:
            self._begun -= 1
        number, watcher = int(answer["id"]), Watcher()
        for early, change in self._early:
            if early == number:
                watcher.put(change)
        self._watchers[number] = watcher
        return number, watcher

    def of(self, message: Message) -> Watcher:
        """Returns the watcher whose id (`watcherId`) a request's message contains. Raises RpcError if there
        is none."""
        connect_protocol.refuse_unknown(message, "watcherId", "watcher_id")
        ident = message.get("watcherId") or message.get("watcher_id")
        if not isinstance(ident, str) or ident not in self.polled:
            raise RpcError("not_found", f"watcher with id {ident} not found")
        return self._watchers[self.polled[ident]]

    async def drop(self, number: int) -> None:
        """Stops the watcher with this number: the folder is not watched any more."""
        self._watchers.pop(number, None)
        await self._files.ask("unwatch", handle=number)


def watchers_of(sandbox: Sandbox) -> Watchers:
    """Returns the object that holds the watched folders of a sandbox. The first call creates this object."""
    if "watchers" not in sandbox.box_state:
        sandbox.box_state["watchers"] = Watchers(sandbox.program("files"))
    watchers: Watchers = sandbox.box_state["watchers"]
    return watchers


async def watch_folder(sandbox: Sandbox, request: Request) -> Response:
    """Handles the call `WatchDir`: responds with a stream of the changes in a folder, until the client
    disconnects or the time limit of the call passes."""
    try:
        message = await connect_protocol.only_message(request)
        seconds = connect_protocol.deadline(request)
        watchers = watchers_of(sandbox)
        async with sandbox.use():
            number, watcher = await watchers.add(connect_protocol.user_of(request), message)
    except RpcError as error:
        return connect_protocol.stream_error(error)
    return connect_protocol.stream(
        request,
        _changes(sandbox, watcher, seconds),
        {"start": {}},
        keepalive={"keepalive": {}},
        at_end=lambda: sandbox.spawn(_dropped(watchers, number)),
    )


async def _changes(
    sandbox: Sandbox, watcher: Watcher, seconds: float | None
) -> AsyncIterator[Message]:
    end = connect_protocol.end_of(seconds)
    try:
        async with sandbox.use():
            while True:
                async with asyncio.timeout_at(end):
                    await watcher.news.wait()
                for change in watcher.take():
                    yield {"filesystem": change}
    except TimeoutError:
        raise RpcError("deadline_exceeded", "the watch has reached its time limit") from None


async def _dropped(watchers: Watchers, number: int) -> None:
    try:
        await watchers.drop(number)
    except (RpcError, BoxDiedError, SandboxGone):  # the box has ended, and the watch with it
        return


async def create_watcher(sandbox: Sandbox, user: str, message: Message) -> Message:
    """Handles the call `CreateWatcher`: starts to watch a folder as the account `user`, and returns
    `{"watcherId": ID}`. With this id, the client later asks for the changes (`GetWatcherEvents`)."""
    watchers = watchers_of(sandbox)
    number, _ = await watchers.add(user, message)
    ident = secrets.token_hex(8)
    watchers.polled[ident] = number
    return {"watcherId": ident}


async def watcher_events(sandbox: Sandbox, _: str, message: Message) -> Message:
    """Handles the call `GetWatcherEvents`: returns `{"events": [...]}` with the changes in a watched folder
    since the client's last such call."""
    return {"events": watchers_of(sandbox).of(message).take()}


async def remove_watcher(sandbox: Sandbox, _: str, message: Message) -> Message:
    """Handles the call `RemoveWatcher`: stops the watcher that `message` names, and returns an empty dict."""
    watchers = watchers_of(sandbox)
    watchers.of(message)
    ident = str(message.get("watcherId") or message.get("watcher_id"))
    await watchers.drop(watchers.polled.pop(ident))
    return {}


def _text(message: Message, name: str) -> str:
    value = message.get(name, "")
    if not isinstance(value, str):
        raise RpcError("invalid_argument", f"{name!r} is not a text")
    return value


def _single(call: Callable[[Sandbox, str, Message], Awaitable[Message]]) -> Call:
    async def answer(sandbox: Sandbox, request: Request) -> Response:
        try:
            message = await connect_protocol.call_message(request)
            async with sandbox.use():
                return JSONResponse(await call(sandbox, connect_protocol.user_of(request), message))
        except RpcError as error:
            return error.response()

    return answer


def _on_files(call: Callable[[Program, str, Message], Awaitable[Message]]) -> Call:
    async def on_files(sandbox: Sandbox, user: str, message: Message) -> Message:
        return await call(sandbox.program("files"), user, message)

    return _single(on_files)


CALLS: dict[str, Call] = {
    "Stat": _on_files(stat),
    "MakeDir": _on_files(make_folder),
    "Move": _on_files(move),
    "ListDir": _on_files(list_folder),
    "Remove": _on_files(remove),
    "WatchDir": watch_folder,
    "CreateWatcher": _single(create_watcher),
    "GetWatcherEvents": _single(watcher_events),
    "RemoveWatcher": _single(remove_watcher),
}
