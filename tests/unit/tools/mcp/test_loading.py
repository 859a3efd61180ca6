"""Tools of MCP servers that a run file names."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from air.errors import ConfigError, InfrastructureError, MissingError
from air.sandbox import open_box
from air.tools import ToolContext, ToolSet, load
from tests.unit.tools.mcp.test_remote import real, served

RAW = (Path(__file__).parent / "raw_server.py").read_text("utf-8")


def program(fault: str = "well", **settings: Any) -> dict[str, Any]:
    command = [sys.executable, "-c", RAW, fault]
    return {"name": "mcp", "command": command, "box": {"provider": "process"}, **settings}


async def test_a_program_in_the_box() -> None:
    tools = ToolSet(load(program(only=["ask"])))
    assert list(tools.tools) == ["ask"]
    assert tools.box is not None
    assert not tools.replays
    async with (
        await open_box(tools.box) as box,
        await tools.open(ToolContext(seed=1, box=box)) as opened,
    ):
        result = await opened.call("ask", {})
        assert (result.status, result.observation) == ("success", "the answer")
        assert (await opened.call("other", {})).status == "error"


async def test_a_remote_server() -> None:
    async with served(real("streamable-http")) as one:
        url = f"http://localhost:{one.port}/mcp"
        spec = {"name": "mcp", "url": url, "private": True, "max_length": 64, "seconds": 5.0}
        tools = ToolSet(await asyncio.to_thread(load, spec))
        async with await tools.open(ToolContext(seed=1)) as opened:
            result = await opened.call("add", {"text": "ab", "times": 200})
            assert result.status == "success"
            assert len(result.observation) == 64
            assert (await opened.call("add", {"text": 5})).status == "error"
            assert (await opened.call("fail", '{"reason": "no"}')).status == "error"
        await one.stop()
        with pytest.raises(InfrastructureError, match="cannot be used"):
            await tools.open(ToolContext(seed=1))
        await one.start()


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({}, "give either `command` or `url`"),
        ({"command": ["a"], "url": "http://a"}, "give either `command` or `url`"),
        ({"url": "ftp://a"}, "must be http://HOST"),
        ({"url": "http://10.0.0.1/mcp"}, "is an IP address"),
        ({"url": "http://user:word@a.org/"}, "must be http://HOST"),
        ({"url": "http://a.org:99999/"}, "out of range"),
        ({"url": "https://a.org", "headers": {"A b": "c"}}, "cannot be sent"),
        ({"url": "https://a.org", "headers": {"A": "c\r\nd"}}, "cannot be sent"),
        ({"url": "https://a.org", "env": {"A": "b"}}, "are for a `command`"),
        ({"command": ["a"], "headers": {"A": "b"}}, "are for a `url`"),
        ({"command": ["a"], "transport": "sse"}, "needs `url`"),
        ({"url": "https://a.org", "transport": "stdio"}, "needs `command`"),
        ({"url": "https://a.org", "server": "a b"}, "server"),
        ({"url": "https://a.org", "hosts": ["*"]}, "hosts"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        load({"name": "mcp", **settings})


def test_a_tool_that_cannot_be_offered() -> None:
    with pytest.raises(ConfigError, match="'ask2' of the server 'mcp': there is no such tool"):
        load(program(only=["ask2"]))


def test_a_server_that_cannot_be_used_says_so_when_the_run_starts() -> None:
    with pytest.raises(MissingError, match="Not today") as failure:
        load(program("refusing"))
    assert "correct `command`" in str(failure.value)
