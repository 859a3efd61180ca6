"""Runs the servers that attacked tools use, each as a process of this machine: a sandbox server (`air serve
sandbox`) for the code interpreter, and MCP servers (servers of tools)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from air.aio import cancel_and_wait
from air.errors import InfrastructureError
from air.integrity.tools_and_checkers.attack import (
    LEFT,
    MCP_URL,
    OTHER_SESSION,
    RESTARTED_MCP_URL,
    SANDBOX_URL,
    SESSION_HEADER,
    AttackedPart,
)

START_SECONDS, STOP_SECONDS = 300.0, 120.0
_SANDBOX = (
    *("air.cli.main", "serve", "sandbox", "--port", "0", "--image", "air-base"),
    *("--memory-mb", "256", "--disk-mb", "64", "--pids", "64", "--queue-seconds", "120"),
)
_MCP = ("air.integrity.tools_and_checkers.mcp_server",)
_RUN = """
import ctypes, runpy, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
"""A program that runs a module, given by its first argument, with the other arguments. If the process that
started it ends, even by SIGKILL, the kernel sends it SIGTERM (`PR_SET_PDEATHSIG`)."""


@asynccontextmanager
async def opened(parts: Sequence[AttackedPart], folder: Path) -> AsyncIterator[dict[str, str]]:
    """Async context manager: runs those servers whose placeholders occur in the tools of `parts`, and yields
    the values of placeholders: the servers' URLs, and the id of the other session with an MCP server. Writes
    the servers' logs to `folder`. Raises InfrastructureError if a server does not start."""
    settings = json.dumps([list(part.tools) for part in parts])
    async with AsyncExitStack() as stack:
        places: dict[str, str] = {}
        for name, server in SERVERS.items():
            if name in settings:
                places |= await stack.enter_async_context(server(folder))
        yield places


@asynccontextmanager
async def _sandbox(folder: Path) -> AsyncIterator[dict[str, str]]:
    async with _running(_SANDBOX, folder / "sandbox.log") as (_, url):
        yield {SANDBOX_URL: url}


@asynccontextmanager
async def _mcp(folder: Path) -> AsyncIterator[dict[str, str]]:
    async with _running(_MCP, folder / "mcp.log") as (_, url):
        yield {MCP_URL: url, OTHER_SESSION: await _other_session(url)}


async def _other_session(url: str, seconds: float = START_SECONDS) -> str:
    """Opens a session with the MCP server at `url`, keeps the text `LEFT` in it, and returns its id. The
    session stays open, as the server ends none by itself. Raises InfrastructureError if the server opens no
    session, does not keep the text, or does not answer a request within `seconds`."""
    client = {"name": "another", "version": "1"}
    start = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
    headers = {"accept": "application/json, text/event-stream"}
    limit = aiohttp.ClientTimeout(total=seconds)
    try:
        async with aiohttp.ClientSession(
            headers=headers, raise_for_status=True, timeout=limit
        ) as http:
            async with http.post(url, json=_request("initialize", start, id=1)) as response:
                body = await response.read()
                session = response.headers.get(SESSION_HEADER, "")
            if not session:
                raise InfrastructureError(f"the MCP server {url} opened no session: {body[:500]!r}")
            for request in (
                _request("notifications/initialized", {}),
                _request("tools/call", {"name": "keep", "arguments": {"text": LEFT}}, id=2),
                _request("tools/call", {"name": "look", "arguments": {}}, id=3),
            ):
                async with http.post(
                    url, json=request, headers={SESSION_HEADER: session}
                ) as response:
                    body = await response.read()
    except (aiohttp.ClientError, TimeoutError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise InfrastructureError(f"the MCP server {url} refused a session: {problem}") from error
    if LEFT.encode() not in body:  # a JSON-RPC error has the HTTP status 200
        raise InfrastructureError(f"the MCP server {url} did not keep a text: {body[:500]!r}")
    return session


def _request(method: str, params: Mapping[str, Any], **fields: int) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": params, **fields}


@asynccontextmanager
async def _mcp_restarted(folder: Path) -> AsyncIterator[dict[str, str]]:
    """Async context manager: runs an MCP server that is started again at the same port whenever it ends, and
    yields its URL. Each end is written to the server's log. If the server could not be started again, raises
    InfrastructureError at the end of the block, unless the block itself raised an exception."""
    log = folder / "mcp-restarted.log"
    started: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def supervise() -> None:
        port = "0"
        while True:
            async with _running((*_MCP, port), log) as (process, url):
                port = url.rpartition(":")[2].partition("/")[0]
                if not started.done():
                    started.set_result(url)
                code = await process.wait()
            await asyncio.to_thread(_append, log, f"[exit status {code}: it is started again]")

    supervisor = asyncio.create_task(supervise())
    try:
        waiting: list[asyncio.Future[Any]] = [supervisor, started]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if not started.done():
            supervisor.result()  # raises why the first start failed
        yield {RESTARTED_MCP_URL: started.result()}
        if supervisor.done():
            supervisor.result()  # raises why a later start failed
    finally:
        started.cancel()
        await cancel_and_wait(supervisor)


def _append(file: Path, line: str) -> None:
    with file.open("a", encoding="utf-8") as log:
        log.write(f"{line}\n")


SERVERS: dict[str, Callable[[Path], AbstractAsyncContextManager[dict[str, str]]]] = {
    SANDBOX_URL: _sandbox,
    MCP_URL: _mcp,
    RESTARTED_MCP_URL: _mcp_restarted,
}
"""For the placeholder of each server's URL, a context manager that runs the server and yields the values of
placeholders. Its argument is the folder for the server's log."""


@asynccontextmanager
async def _running(
    module: Sequence[str], log: Path
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """Async context manager: runs a Python module with arguments as a process until the block ends, and
    yields the process and the URL that its first line says. Its standard error goes to the end of the file
    `log`. Raises InfrastructureError if the first line is another one, or does not come in time."""
    with log.open("ab") as errors:  # not in a thread, which would leave it open when cancelled
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _RUN, *module), stdout=asyncio.subprocess.PIPE, stderr=errors
        )
    try:
        assert process.stdout is not None
        line = b""
        with contextlib.suppress(TimeoutError):  # the next lines say so
            async with asyncio.timeout(START_SECONDS):
                line = await process.stdout.readline()
        words = line.decode("utf-8", "replace").split()
        if words[:2] != ["serving", "on"]:
            told = (await asyncio.to_thread(log.read_text, "utf-8", "replace"))[-1000:]
            raise InfrastructureError(f"{' '.join(module)} did not start: {told}")
        yield process, words[2]
    finally:
        await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
