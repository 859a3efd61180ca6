"""Serves the service `process.Process` of envd (E2B's program in a sandbox): remote calls with which clients
start and control processes."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from air.errors import BoxCommandError, BoxDiedError, BoxFileError
from air.sandbox.contract.box import ExecResult
from air.sandbox.contract.running_command import RunningCommand
from air.serve.e2b.envd import connect_protocol
from air.serve.e2b.envd.accounts import Account, account
from air.serve.e2b.envd.connect_protocol import Message
from air.serve.e2b.errors import RpcError, SandboxGone
from air.serve.e2b.sandbox import Sandbox
from air.serve.http.bodies import mark_body_forwarded

PIECE = 1 << 15
_SIGNALS = {"SIGNAL_SIGTERM": 15, "SIGNAL_SIGKILL": 9, 15: 15, 9: 9}
Call = Callable[[Sandbox, Request], Awaitable[Response]]


async def start(sandbox: Sandbox, request: Request) -> Response:
    """Handles the call `Start`: starts a process in the sandbox, and responds with a stream of its output. If
    the client disconnects, the process continues."""
    try:
        message = await connect_protocol.only_message(request)
        connect_protocol.refuse_unknown(message, "process", "pty", "tag", "stdin")
        async with _box_errors_as_rpc(sandbox):
            configs = await _running_configs(sandbox)
            command, config = await _started(sandbox, request, message)
    except RpcError as error:
        return connect_protocol.stream_error(error)
    configs[command.pid] = config
    if tag := message.get("tag"):
        sandbox.tags[command.pid] = str(tag)
    return connect_protocol.stream(
        request, _events(sandbox, command, None), _event("start", {"pid": command.pid})
    )


async def _started(
    sandbox: Sandbox, request: Request, message: Message
) -> tuple[RunningCommand, dict[str, Any]]:
    config, pty = _object(message, "process"), message.get("pty")
    connect_protocol.refuse_unknown(config, "cmd", "args", "envs", "cwd")
    user = await account(sandbox, connect_protocol.user_of(request))
    arguments = config.get("args") or []
    if not isinstance(arguments, list):
        raise RpcError("invalid_argument", "process.args is not a list")
    argv = [str(config.get("cmd", "")), *map(str, arguments)]
    if not argv[0]:
        raise RpcError("invalid_argument", "process.cmd is missing")
    env = _environment(sandbox, user, _object(config, "envs"), pty is not None)
    folder = user.path(str(config.get("cwd") or ""))
    await _check_folder(sandbox, user, folder)
    box = await sandbox.awake_box()
    command = await box.start(
        argv,
        cwd=folder,
        env=env,
        user=user.name,
        stdin=bool(message.get("stdin", True)),
        terminal=None if pty is None else _size(pty),
        timeout=connect_protocol.deadline(request),
    )
    return command, config


async def _check_folder(sandbox: Sandbox, user: Account, folder: str) -> None:
    """Checks the working folder of a process that will be started for the account `user`: raises RpcError
    unless the path `folder` is an existing folder. Only the account's home folder is not checked."""
    if folder != user.home:
        try:
            answer, _ = await sandbox.program("files").ask("stat", user=user.name, path=folder)
        except RpcError as error:
            raise RpcError("invalid_argument", f"cwd {folder!r} does not exist") from error
        if answer["entry"]["type"] != "FILE_TYPE_DIRECTORY":
            raise RpcError("invalid_argument", f"cwd {folder!r} is not a directory")


def _environment(
    sandbox: Sandbox, user: Account, wanted: dict[str, Any], terminal: bool
) -> dict[str, str]:
    env = {"HOME": user.home, "USER": user.name, "LOGNAME": user.name, "E2B_SANDBOX": "true"}
    env |= {"E2B_SANDBOX_ID": sandbox.id, "E2B_TEMPLATE_ID": sandbox.settings.template}
    env |= {"TERM": "xterm-256color"} if terminal else {}
    return env | sandbox.settings.env | {name: str(value) for name, value in wanted.items()}


async def connect(sandbox: Sandbox, request: Request) -> Response:
    """Handles the call `Connect`: responds with a stream of the output of a running process. Output from
    before the call is not included."""
    try:
        message = await connect_protocol.only_message(request)
        seconds = connect_protocol.deadline(request)
        connect_protocol.refuse_unknown(message, "process")
        async with _box_errors_as_rpc(sandbox):
            command = await _selected(sandbox, message)
    except RpcError as error:
        return connect_protocol.stream_error(error)
    return connect_protocol.stream(
        request, _events(sandbox, command, seconds), _event("start", {"pid": command.pid})
    )


async def _events(
    sandbox: Sandbox, command: RunningCommand, seconds: float | None
) -> AsyncIterator[Message]:
    """Yields the output of a process as messages, then one message about the end of the process. Raises
    RpcError if the process has not ended within `seconds` (None: no limit), or was killed at its own time
    limit."""
    end = connect_protocol.end_of(seconds)
    try:
        async with _box_errors_as_rpc(sandbox):
            async with contextlib.aclosing(command.output()) as output:  # type: ignore[type-var]
                while True:
                    async with asyncio.timeout_at(end):
                        piece = await anext(output, None)
                    if piece is None:
                        break
                    name, data = piece
                    for at in range(0, len(data), PIECE):
                        yield _data(name, data[at : at + PIECE])
            async with asyncio.timeout_at(end):
                result = await command.wait()
    except TimeoutError:
        raise RpcError("deadline_exceeded", f"no end within {seconds:g} s") from None
    if result.timed_out:
        raise RpcError("deadline_exceeded", "the process was killed at its timeout")
    yield _event("end", _end(result))


def _end(result: ExecResult) -> dict[str, Any]:
    if result.signal:
        status = f"signal: {result.signal}"
        return {"exitCode": -1, "exited": False, "status": status, "error": status}
    end = {"exitCode": result.code, "exited": True, "status": f"exit status {result.code}"}
    return end | ({"error": end["status"]} if result.code else {})


def _data(name: str, data: bytes) -> Message:
    name = "pty" if name == "terminal" else name
    return _event("data", {name: base64.b64encode(data).decode()})


def _event(kind: str, body: Message) -> Message:
    return {"event": {kind: body}}


async def list_processes(sandbox: Sandbox, message: Message) -> Message:
    """Handles the call `List`: returns `{"processes": [...]}` with the settings, the process id and the tag
    (if any) of each running process that a client started."""
    configs = await _running_configs(sandbox)
    return {
        "processes": [
            {"config": config, "pid": pid}
            | ({"tag": sandbox.tags[pid]} if pid in sandbox.tags else {})
            for pid, config in configs.items()
        ]
    }


async def _running_configs(sandbox: Sandbox) -> dict[int, dict[str, Any]]:
    """Returns the running processes that clients started: a dict that maps the process id to the settings
    with which the client started the process. Forgets those that have ended, with their tags."""
    configs: dict[int, dict[str, Any]] = sandbox.box_state.setdefault("processes", {})
    running = {info.pid for info in await sandbox.running_box.commands()}
    for gone in configs.keys() - running:
        del configs[gone]
        sandbox.tags.pop(gone, None)
    return configs


async def send_input(sandbox: Sandbox, message: Message) -> Message:
    """Handles the call `SendInput`: writes bytes to a process's standard input or, if the process has a
    terminal, to the terminal. Returns an empty dict."""
    connect_protocol.refuse_unknown(message, "process", "input")
    await _write(await _selected(sandbox, message), message)
    return {}


async def _write(command: RunningCommand, message: Message) -> None:
    given = _object(message, "input")
    name = "pty" if command.info.terminal else "stdin"
    if list(given) != [name]:
        raise RpcError("invalid_argument", f"this process takes the input {name!r}")
    try:
        data = base64.b64decode(str(given[name]), validate=True)
    except binascii.Error:
        raise RpcError("invalid_argument", "the input is not base64") from None
    await command.write(data)


async def stream_input(sandbox: Sandbox, request: Request) -> Response:
    """Handles the call `StreamInput`. The first message of the client's stream names a process; the data of
    the next messages is written to the process's standard input or terminal, in order."""
    command: RunningCommand | None = None
    mark_body_forwarded(request.scope, endless=True)
    try:
        async with _box_errors_as_rpc(sandbox):
            async for message in connect_protocol.frames(request):
                if "start" in message:
                    command = await _selected(sandbox, _object(message, "start"))
                elif "data" in message and command is not None:
                    await _write(command, _object(message, "data"))
                elif "keepalive" not in message:
                    raise RpcError("invalid_argument", "expected `start` first, then `data`")
    except RpcError as error:
        return connect_protocol.stream_error(error)
    body = connect_protocol.frame({}) + connect_protocol.frame({}, connect_protocol.END)
    return Response(body, media_type="application/connect+json")


async def send_signal(sandbox: Sandbox, message: Message) -> Message:
    """Handles the call `SendSignal`: sends SIGTERM or SIGKILL to a process and its process group. Returns an
    empty dict."""
    connect_protocol.refuse_unknown(message, "process", "signal")
    given = message.get("signal", 0)
    number = _SIGNALS.get(given) if isinstance(given, (str, int)) else None
    if number is None:
        raise RpcError("invalid_argument", f"signal {given!r} is not served")
    await (await _selected(sandbox, message)).signal(number)
    return {}


async def close_stdin(sandbox: Sandbox, message: Message) -> Message:
    """Handles the call `CloseStdin`: closes a process's standard input, and returns an empty dict. Raises
    RpcError if the process has a terminal."""
    connect_protocol.refuse_unknown(message, "process")
    command = await _selected(sandbox, message)
    if command.info.terminal:
        raise RpcError("failed_precondition", "a terminal ends with Ctrl+D (byte 4), not so")
    await command.close_stdin()
    return {}


async def update(sandbox: Sandbox, message: Message) -> Message:
    """Handles the call `Update`: changes the size of a process's terminal. Returns an empty dict."""
    connect_protocol.refuse_unknown(message, "process", "pty")
    command = await _selected(sandbox, message)
    if (pty := message.get("pty")) is not None:
        await command.resize(*_size(pty))
    return {}


async def _selected(sandbox: Sandbox, message: Message) -> RunningCommand:
    """Returns the running process that a client's message names in its field `process`, by process id or by
    tag. Raises RpcError if no such process, started by a client, is running."""
    selector = _object(message, "process")
    configs = await _running_configs(sandbox)
    pid = selector.get("pid")
    if "tag" in selector:
        pid = next((pid for pid, tag in sandbox.tags.items() if tag == selector["tag"]), None)
    if not isinstance(pid, int) or pid not in configs:
        raise RpcError("not_found", f"process with {selector or 'no selector'} not found")
    try:
        return await sandbox.running_box.attach(pid)
    except BoxCommandError:
        raise RpcError("not_found", f"process with pid {pid} not found") from None


@contextlib.asynccontextmanager
async def _box_errors_as_rpc(sandbox: Sandbox) -> AsyncIterator[None]:
    """Async context manager: converts errors that the box (the sandbox's container) raises in the block. If
    the box has ended, the new error is SandboxGone; otherwise, it is RpcError."""
    try:
        yield
    except BoxDiedError as error:
        raise SandboxGone(sandbox.id) from error
    except BoxCommandError as error:
        raise RpcError("failed_precondition", str(error)) from error
    except BoxFileError as error:
        raise RpcError("invalid_argument", str(error)) from error


def _size(pty: Any) -> tuple[int, int]:
    size = pty.get("size", {}) if isinstance(pty, dict) else {}
    numbers = [size.get("rows"), size.get("cols")] if isinstance(size, dict) else [None]
    sizes = [number for number in numbers if isinstance(number, int) and 0 < number < 65536]
    if len(sizes) != len(numbers):
        raise RpcError("invalid_argument", "pty.size needs `rows` and `cols`")
    return sizes[0], sizes[1]


def _object(message: Message, name: str) -> dict[str, Any]:
    value = message.get(name) or {}
    if not isinstance(value, dict):
        raise RpcError("invalid_argument", f"{name!r} is not an object")
    return value


def _single(call: Callable[[Sandbox, Message], Awaitable[Message]]) -> Call:
    async def answer(sandbox: Sandbox, request: Request) -> Response:
        try:
            message = await connect_protocol.call_message(request)
            async with _box_errors_as_rpc(sandbox):
                return JSONResponse(await call(sandbox, message))
        except RpcError as error:
            return error.response()

    return answer


CALLS: dict[str, Call] = {
    "Start": start,
    "Connect": connect,
    "StreamInput": stream_input,
    "List": _single(list_processes),
    "SendInput": _single(send_input),
    "SendSignal": _single(send_signal),
    "CloseStdin": _single(close_stdin),
    "Update": _single(update),
}
