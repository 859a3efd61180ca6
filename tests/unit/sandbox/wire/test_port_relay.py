"""Relayed connections beyond what every box must hold to (`conformance.ports`): errors, the rate, the
end, and a guest that is not ours."""

from __future__ import annotations

import asyncio
import errno
import gc
import socket
import weakref
from pathlib import Path

import pytest

from air.errors import BoxDiedError, BoxStartError
from air.sandbox import open_box
from air.sandbox.conformance.ports import ECHO, echo, output_of, program
from air.sandbox.contract.box import BoxSpec
from air.sandbox.guest.frames import frame, take
from air.sandbox.wire import port_relay
from air.sandbox.wire.connection import Connection
from air.sandbox.wire.port_relay import CONNECTIONS, SLOT_SECONDS, WINDOW
from tests.until import until

SPEC = BoxSpec(provider="process")
RESET = """
c = socket.create_connection(here)
try: print(c.recv(1))
except OSError as error: print(error.errno)
"""


async def test_a_target_that_is_not_there_resets_the_connection() -> None:
    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        gone = server.sockets[0].getsockname()[1]
    async with await open_box(SPEC) as box:
        port = await box.forward(0, ("127.0.0.1", gone))
        assert await output_of(box, port, RESET) == "104"


async def test_a_port_that_is_taken_is_one_line() -> None:
    async with await open_box(SPEC) as box:
        port = await box.forward(0, echo)
        with pytest.raises(BoxStartError, match=f"port {port} cannot be opened: Address already"):
            await box.forward(port, echo)
        assert await output_of(box, port, ECHO) == "hello"


async def test_a_port_is_reached_from_its_own_machine_only() -> None:
    async with await open_box(SPEC) as box:
        port = await box.forward(0, echo)
        script = f"print(socket.socket().connect_ex(('127.0.0.2', {port})))"
        assert await output_of(box, port, script) == str(errno.ECONNREFUSED)


async def test_a_box_that_is_gone_cannot_listen() -> None:
    box = await open_box(SPEC)
    await box.close()
    with pytest.raises(BoxDiedError):
        await box.forward(0, echo)


async def test_a_handler_at_fault_ends_its_connection_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def faulty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise ZeroDivisionError("at fault")

    async with await open_box(SPEC) as box:
        bad, good = await box.forward(0, faulty), await box.forward(0, echo)
        assert await output_of(box, bad, RESET) == "104"
        assert await output_of(box, good, ECHO) == "hello"
    assert "at fault" in caplog.text


async def test_connections_in_a_loop_are_held_to_a_rate() -> None:
    opened = 0

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1

    async with await open_box(SPEC) as box:
        port = await box.forward(0, count)
        loop = asyncio.get_running_loop()
        since = loop.time()
        script = f"for _ in range({4 * CONNECTIONS}):\n c = socket.create_connection(here)\n"
        await output_of(box, port, f"{script} c.recv(1)\n c.close()")
        assert opened == 4 * CONNECTIONS
        assert loop.time() - since > 2.9 * SLOT_SECONDS


async def test_a_box_that_closes_frees_every_connection() -> None:
    ended = 0
    opened = asyncio.Event()

    async def waiting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal ended
        if await reader.readexactly(1) == b"9":
            opened.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended += 1

    async def one_box(server: asyncio.Server) -> None:
        box = await open_box(SPEC)
        port = await box.forward(0, waiting)
        other = await box.forward(0, server.sockets[0].getsockname()[:2])
        script = f"kept = [socket.create_connection(('127.0.0.1', {other})) for _ in range(10)]\n"
        script += "for c in kept:\n c.sendall(b'x')\n c.recv(1)\n"
        script += "more = [socket.create_connection(here) for _ in range(10)]\n"
        script += "for n, c in enumerate(more): c.sendall(b'%d' % n)\ntime.sleep(600)"
        running = asyncio.create_task(box.exec(program(port, script), timeout=600))
        await opened.wait()
        await box.close()
        with pytest.raises(BoxDiedError):
            await running

    async with await asyncio.start_server(echo_and_close, "127.0.0.1", 0) as server:
        await one_box(server)
        opened.clear()
        tasks, descriptors = len(asyncio.all_tasks()), _descriptors()
        await one_box(server)
        # The server sees its connections end a little later.
        await until(lambda: len(asyncio.all_tasks()) <= tasks and _descriptors() <= descriptors)
        assert ended == 20


async def test_unread_bytes_do_not_wait_for_the_garbage_collector() -> None:
    readers: list[weakref.ref[asyncio.StreamReader]] = []

    async def unread(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        readers.append(weakref.ref(reader))

    async with await open_box(SPEC) as box:
        port = await box.forward(0, unread)
        gc.disable()
        try:
            await output_of(box, port, "socket.create_connection(here).sendall(b'x' * 50000)")
            await until(lambda: readers and readers[0]() is None)  # the connection's slot is free
        finally:
            gc.enable()


async def echo_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        await echo(reader, writer)
    except ConnectionError:
        pass  # the box is closed
    finally:
        writer.close()


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_a_plain_process_box_has_the_machines_network_whatever_is_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIR_PROCESS_BOX", "plain")
    async with await open_box(SPEC.model_copy(update={"network": ("example.org",)})) as box:
        assert (await box.exec("env", timeout=60)).text.lower().count("proxy") == 0
        assert box.isolation == "process"


# What only a guest that is not ours would send


OPEN = {"op": "relay", "conn": 1, "do": "open", "key": 1}


@pytest.mark.parametrize(
    "frames",
    [
        [({"op": "relay", "conn": "x", "do": "open", "key": 1}, b"")],
        [({**OPEN, "key": 7}, b"")],
        [({**OPEN, "key": []}, b"")],
        [(OPEN, b""), (OPEN, b"")],
        [({**OPEN, "conn": number}, b"") for number in range(CONNECTIONS + 1)],
        [(OPEN, b""), ({**OPEN, "do": "data"}, bytes(WINDOW + 1))],
        [(OPEN, b""), *[({**OPEN, "do": "data"}, bytes(WINDOW // 2))] * 4],
        [(OPEN, b""), ({**OPEN, "do": "credit", "bytes": "1"}, b"")],
        [(OPEN, b""), ({**OPEN, "do": "credit", "bytes": -1}, b"")],
        [(OPEN, b""), ({**OPEN, "do": "dance"}, b"")],
    ],
)
async def test_a_guest_that_breaks_the_rules_loses_its_box(
    frames: list[tuple[dict[str, object], bytes]],
) -> None:
    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=theirs)
    streams = await asyncio.open_connection(sock=ours)
    connection = Connection(*streams, stderr=asyncio.StreamReader(), name="b")
    ends = port_relay.Relay(connection, "b")
    listening = asyncio.create_task(ends.listen(0, deaf))
    asked, buffer = None, bytearray()
    while asked is None:
        buffer += await reader.read(1000)
        asked = take(buffer)
    key = asked[0]["key"]
    writer.write(frame({"id": asked[0]["id"], "port": 5}))
    assert await listening == 5
    for header, body in frames:
        writer.write(frame(header | ({"key": key} if header["key"] == 1 else {}), body))
    async with asyncio.timeout(60):
        while await reader.read(1 << 16):
            pass  # until it is given up
    with pytest.raises(BoxDiedError, match="its stream broke: a relayed connection"):
        await connection.request({"op": "exec"})
    writer.close()
    await connection.close()
    await ends.close()
