"""The servers that attacked tools use: they end in time, and their log says why one was started again."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import aiohttp

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
