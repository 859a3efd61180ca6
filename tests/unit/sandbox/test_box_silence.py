"""A guest whose input neither ends nor says anything, as an engine that was killed leaves it."""

from __future__ import annotations

import asyncio
import sys
import time

import pytest

from air.errors import BoxDiedError
from air.sandbox.protocol import Connection, interpreter, opening


async def _guest(silence: float, pulse: float) -> tuple[asyncio.subprocess.Process, Connection]:
    process = await asyncio.create_subprocess_exec(
        *interpreter(sys.executable),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    connection = Connection(
        process.stdout, process.stdin, stderr=process.stderr, name="b", pulse=pulse
    )
    config = {"roots": [], "remove": None, "rlimits": [], "env": {}, "silence": silence}
    process.stdin.write(opening(config))
    await connection.ready(seconds=60)
    return process, connection


async def test_a_guest_that_hears_nothing_ends_with_its_commands() -> None:
    process, connection = await _guest(silence=1.0, pulse=600)
    request = {"op": "exec", "argv": ["sleep", "600"], "timeout": 600, "max_bytes": 9}
    request |= {"cwd": "/", "env": {}}
    with pytest.raises(BoxDiedError, match="its host was silent for too long"):
        await asyncio.wait_for(connection.request(request), 60)
    assert await asyncio.wait_for(process.wait(), 60) == 0
    await connection.close()


async def test_an_idle_guest_hears_enough_to_live_on() -> None:
    process, connection = await _guest(silence=2.0, pulse=0.1)
    begun = time.monotonic()
    while time.monotonic() < begun + 4:
        assert not connection.reason
        await asyncio.sleep(0.1)
    await connection.close()
    assert await asyncio.wait_for(process.wait(), 60) == 0
