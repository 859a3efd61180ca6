"""A stream that neither ends nor works is noticed from both ends."""

from __future__ import annotations

import asyncio
import socket
import statistics
import sys
import time
from collections.abc import Sequence

import pytest

from air.errors import BoxDiedError
from air.sandbox.wire.connection import BEATS_MISSED, Connection, interpreter, opening


async def _guest(
    silence: float, beat: float, before: Sequence[str] = ()
) -> tuple[asyncio.subprocess.Process, Connection]:
    process = await asyncio.create_subprocess_exec(
        *before,
        *interpreter(sys.executable),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    connection = Connection(
        process.stdout, process.stdin, stderr=process.stderr, name="b", beat=beat
    )
    config = {"roots": [], "remove": None, "rlimits": [], "env": {}}
    process.stdin.write(opening(config | {"silence": silence}))
    await connection.ready(seconds=60)
    return process, connection


async def test_a_guest_that_hears_nothing_ends_with_its_commands() -> None:
    process, connection = await _guest(silence=1.0, beat=600)
    request = {"op": "exec", "argv": ["sleep", "600"], "timeout": 600, "max_bytes": 9}
    request |= {"cwd": "/", "env": {}}
    with pytest.raises(BoxDiedError, match="its host was silent for too long"):
        await asyncio.wait_for(connection.request(request), 60)
    assert await asyncio.wait_for(process.wait(), 60) == 0
    await connection.close()


async def test_beats_keep_an_idle_guest_alive() -> None:
    # On a busy machine neither side may give the other up: after 5 s the guest, after 4 beats this process.
    process, connection = await _guest(silence=5.0, beat=1.25)
    begun = time.monotonic()
    while time.monotonic() < begun + 7:
        assert not connection.reason
        await asyncio.sleep(0.1)
    await connection.close()
    assert await asyncio.wait_for(process.wait(), 60) == 0


async def test_a_silent_guest_is_given_up() -> None:
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    with theirs:
        connection = Connection(reader, writer, stderr=None, name="b", beat=0.05)
        with pytest.raises(BoxDiedError, match="its guest was silent for 0 s"):
            await asyncio.wait_for(connection.request({"op": "get"}), 60)
        heard = b""
        theirs.setblocking(False)  # the loop that reads here is the one that closes the other end
        while piece := await asyncio.get_running_loop().sock_recv(theirs, 1000):
            heard += piece
        assert heard.count(b'"beat"') == BEATS_MISSED
    await connection.close()


async def test_a_signal_that_the_harness_blocks_no_command_blocks() -> None:
    block = "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1]);"
    block += "os.execv(sys.argv[1], sys.argv[1:])"
    process, connection = await _guest(60, 600, before=[sys.executable, "-c", block])
    request = {"op": "exec", "argv": ["grep", "SigBlk", "/proc/self/status"], "timeout": 60}
    _, body = await connection.request(request | {"max_bytes": 99, "cwd": "/", "env": {}})
    assert int(body.split()[1], 16) == 0
    await connection.close()
    assert await asyncio.wait_for(process.wait(), 60) == 0


async def test_what_is_done_is_answered_while_more_begins() -> None:
    process, connection = await _guest(silence=60, beat=600)
    request = {"op": "exec", "argv": ["true"], "timeout": 60, "max_bytes": 9, "cwd": "/", "env": {}}
    begun = time.monotonic()
    replies = await asyncio.gather(*(connection.request(request) for _ in range(200)))
    took = time.monotonic() - begun
    assert all(header["code"] == 0 for header, _ in replies)
    # The guest has them all before the second begins.
    assert statistics.median(header["seconds"] for header, _ in replies[:100]) < took / 2
    await connection.close()
    assert await asyncio.wait_for(process.wait(), 60) == 0
