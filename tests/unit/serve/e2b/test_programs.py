"""Air's helper programs in the box of an E2B sandbox, if code in the box has taken them over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from air.sandbox import open_box
from air.sandbox.contract.box import Box, BoxSpec
from air.sandbox.contract.running_command import RunningCommand
from air.sandbox.wire.port_relay import Handler
from air.serve.e2b.envd.filesystem import Watchers
from air.serve.e2b.errors import RpcError
from air.serve.e2b.helper_program import Program
from air.serve.e2b.ports import Ports
from air.serve.e2b.sandbox import Sandbox, SandboxSettings
from tests.until import until

SPEC = BoxSpec(provider="process")
FRAMES = """
import json, struct, sys, time

def receive():
    head, body = struct.unpack(">II", sys.stdin.buffer.read(8))
    return json.loads(sys.stdin.buffer.read(head))

def send(header):
    text = json.dumps(header).encode()
    sys.stdout.buffer.write(struct.pack(">II", len(text), 0) + text)
    sys.stdout.buffer.flush()
"""
MALFORMED_CHANGE = """
send({"id": receive()["id"]})  # a folder is watched
receive()
send({"watch": 1, "event": {"entry": "no object"}})
time.sleep(600)
"""

DIES_AFTER_ITS_CONNECTION = """
import selectors, socket
word = receive()["word"].encode()
selector = selectors.DefaultSelector()
for _ in range(2):  # the server takes the first one, and closes the other at once
    connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    connection.sendall(word + b"\\n")
    selector.register(connection, selectors.EVENT_READ)
selector.select()
"""

READS_LATER = """
import os
while not os.path.exists("go"):
    time.sleep(0.01)
while True:
    send({"id": receive()["id"]})
"""


class TakenOver:
    """A box in which each helper program is this program instead. `commands` are those that run it. `opened`
    and `ended` count the connections from the box to its port relays."""

    def __init__(self, box: Box, program: str) -> None:
        self._box, self._program = box, program
        self.commands: list[RunningCommand] = []
        self.opened = self.ended = 0

    async def forward(self, port: int, handler: Handler) -> int:
        async def counted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.opened += 1
            await handler(reader, writer)
            self.ended += 1

        return await self._box.forward(port, counted)

    async def write(self, path: str, data: bytes) -> None:
        await self._box.write(path, data)

    async def start(self, argv: list[str], **_: Any) -> RunningCommand:
        _python, _isolated, _code, _script, *arguments = argv
        argv = ["python3", "-c", FRAMES + self._program, *arguments]
        self.commands.append(await self._box.start(argv, stdin=True))
        return self.commands[-1]


@asynccontextmanager
async def taken_over(program: str) -> AsyncIterator[tuple[TakenOver, Program]]:
    async with await open_box(SPEC) as box:
        mine = TakenOver(box, program)

        async def awake() -> Box:
            return cast(Box, mine)

        helper = Program(awake, "files")
        try:
            yield mine, helper
        finally:
            await helper.close()


async def test_a_program_that_reports_nonsense_is_killed() -> None:
    async with taken_over(MALFORMED_CHANGE) as (box, program):
        await Watchers(program).add("user", {"path": "/"})
        with pytest.raises(RpcError, match="nonsense"):
            await program.ask("stat")
        ended = await asyncio.wait_for(box.commands[0].wait(), 60)
        assert ended.signal == 9


async def test_a_connection_ends_although_its_program_dies_before_it_answers() -> None:
    async with await open_box(SPEC) as real:
        box = TakenOver(real, DIES_AFTER_ITS_CONNECTION)
        sandbox = Sandbox(SandboxSettings("any"), SPEC)
        sandbox.box = cast(Box, box)
        with pytest.raises(RpcError, match="the program ended"):
            async with Ports(sandbox).connection(1):
                pytest.fail("the program has not answered")
        await until(lambda: box.ended == 2)
        assert box.opened == 2
        await sandbox.stop_programs()


async def test_a_request_that_is_given_up_halfway_leaves_no_half_of_it() -> None:
    async with taken_over(READS_LATER) as (box, program):
        given_up = asyncio.create_task(program.ask("execute", source="x" * (1 << 20)))
        await until(lambda: box.commands)
        for _ in range(200):  # the pipe to the program is full by then
            await asyncio.sleep(0.01)
        given_up.cancel()
        await asyncio.wait([given_up])
        dropped = asyncio.create_task(program.ask("never", source="x" * (1 << 20)))
        await asyncio.sleep(0)
        dropped.cancel()
        waiting = asyncio.create_task(program.ask("stat"))
        await box.write("go", b"")
        assert (await asyncio.wait_for(waiting, 60))[0].keys() == {"id"}


async def test_a_program_that_reads_nothing_can_be_closed_while_it_is_asked() -> None:
    async with taken_over("time.sleep(600)") as (box, program):
        asked = [
            asyncio.create_task(program.ask("execute", source="x" * (1 << 20))) for _ in range(2)
        ]
        await until(lambda: box.commands)
        await asyncio.wait_for(program.close(), 60)
        results = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 60)
        assert [type(result) for result in results] == [RpcError, RpcError]
        assert len(box.commands) == 1
