"""The servers that attacked tools use: they end in time, and their log says why one was started again."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from air.errors import InfrastructureError
from air.integrity.tools_and_checkers import services
from air.integrity.tools_and_checkers.attack import RESTARTED_MCP_URL
from air.integrity.tools_and_checkers.remote_tools import RESTARTED_MCP
from tests.until import until

LONG = 120.0
"""A time limit in seconds that nothing reaches."""


def call(tool: str, **arguments: Any) -> dict[str, Any]:
    params = {"name": tool, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


async def test_the_log_of_a_restarted_server_says_how_it_ended(tmp_path: Path) -> None:
    log = tmp_path / "mcp-restarted.log"
    async with services.opened([RESTARTED_MCP], tmp_path) as places:
        session = await services._other_session(places[RESTARTED_MCP_URL])
        headers = {"accept": "application/json, text/event-stream", "mcp-session-id": session}
        async with aiohttp.ClientSession(headers=headers) as http:
            try:
                async with http.post(places[RESTARTED_MCP_URL], json=call("stop")) as response:
                    await response.read()
            except aiohttp.ClientError:
                pass  # the server has ended
        await until(lambda: "[exit status 1: it is started again]" in log.read_text())


async def test_a_client_that_hangs_does_not_keep_the_server_running() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "air.integrity.tools_and_checkers.mcp_server"),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(LONG):
            url = (await process.stdout.readline()).decode().split()[-1]
            async with (
                aiohttp.ClientSession() as http,
                http.post(url, data=json.dumps(call("respond", end="wait"))) as response,
            ):
                assert response.status == 200  # the head of a response that never ends
                process.send_signal(signal.SIGTERM)
                await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("no session", "opened no session"),
        ("refuses the text", "did not keep a text"),
        ("never answers", "refused a session: TimeoutError"),
        ("status", "refused a session: ClientResponseError: 503"),
    ],
)
async def test_a_server_without_the_other_session_is_a_failure_of_ours(
    fault: str, message: str
) -> None:
    over = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        if fault == "never answers":
            await over.wait()
        headers = {} if fault == "no session" else {"mcp-session-id": "1"}
        error = {"jsonrpc": "2.0", "id": 2, "error": {"code": -32602, "message": "Unknown tool"}}
        status = 503 if fault == "status" else 200
        return web.json_response(error, headers=headers, status=status)

    app = web.Application()
    app.router.add_post("/mcp", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
        seconds = 0.2 if fault == "never answers" else LONG
        with pytest.raises(InfrastructureError, match=message):
            await services._other_session(url, seconds)
    finally:
        over.set()  # the server waits for its open responses
        await runner.cleanup()
