"""Conformance checks (tests in a real box) of `Box.forward`, which passes network connections of programs in
the box on to this process."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path

from air.sandbox.conformance.check import Checks, expect, same
from air.sandbox.contract.box import Box
from air.sandbox.wire.port_relay import CONNECTIONS, WINDOW

CHECKS = Checks()
_SECONDS = 120
_IMPORTS = "import asyncio, hashlib, select, socket, sys, threading, time\n"


def program(port: int, script: str) -> list[str]:
    """Returns the command line that runs the Python code `script` in a box. The code can use the variable
    `here`: the address (host, port) of the forwarded `port`."""
    return ["python3", "-c", f"{_IMPORTS}here = ('127.0.0.1', {port})\n{script}"]


async def output_of(box: Box, port: int, script: str) -> str:
    """Runs the Python code `script` in the box (see `program`) and returns its output without surrounding
    white space. Raises `Unmet` if the script fails."""
    result = await box.exec(program(port, script), timeout=_SECONDS)
    expect(result.ok, result)
    return result.text.strip()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A handler for `Box.forward` that sends every received byte back over the same connection."""
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()


ECHO = """
c = socket.create_connection(here)
c.sendall(b'hello')
c.shutdown(1)
print(c.makefile().read())
"""
"""Python code to run in a box by the function `program`: connects to the forwarded port, sends `hello`,
closes its sending side, and prints what comes back."""


@CHECKS.add()
async def its_programs_reach_one_another_as_localhost(box: Box) -> None:
    script = (
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "client = socket.create_connection(('localhost', server.getsockname()[1]))\n"
        "client.sendall(b'hello')\n"
        "print(server.accept()[0].recv(5).decode())"
    )
    same(await output_of(box, 0, script), "hello")


@CHECKS.add()
async def its_ports_are_answered_by_the_harness(box: Box) -> None:
    async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read()).upper())

    first, second = await box.forward(0, echo), await box.forward(0, shout)
    same(await output_of(box, first, ECHO), "hello")
    same(await output_of(box, second, ECHO), "HELLO")
    async with await asyncio.start_server(_serve_echo, "127.0.0.1", 0) as server:
        third = await box.forward(0, ("127.0.0.1", server.sockets[0].getsockname()[1]))
        same(await output_of(box, third, ECHO), "hello")


async def _serve_echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await echo(reader, writer)
    writer.close()


_BULK = """
c = socket.create_connection(here)
up, down = hashlib.sha256(), hashlib.sha256()
def send():
    for number in range(160):
        piece = bytes([number]) * 65536
        up.update(piece)
        c.sendall(piece)
    c.shutdown(1)
thread = threading.Thread(target=send)
thread.start()
while True:
    data = c.recv(100_000)
    if not data: break
    down.update(data)
thread.join()
print(up.hexdigest(), down.hexdigest())
"""


@CHECKS.add()
async def ten_megabytes_pass_each_way_while_commands_answer(box: Box) -> None:
    """Checks that ten megabytes pass through a forwarded port in each direction, and that commands run
    meanwhile. Halfway, the host stops the transfer in both directions until a command has run in the box."""
    halfway, go_on, got = asyncio.Event(), asyncio.Event(), hashlib.sha256()
    sent = [os.urandom(1 << 16) for _ in range(160)]

    async def receive(reader: asyncio.StreamReader) -> None:
        size = 0
        while data := await reader.read(1 << 16):
            got.update(data)
            size += len(data)
            if size > 5_000_000:
                halfway.set()
                await go_on.wait()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        receiving = asyncio.create_task(receive(reader))
        for number, piece in enumerate(sent):
            writer.write(piece)
            await writer.drain()
            if number == 80:
                await go_on.wait()
        await receiving

    port = await box.forward(0, handler)
    bulk = asyncio.create_task(output_of(box, port, _BULK))
    waiting = asyncio.create_task(halfway.wait())
    await asyncio.wait([waiting, bulk], timeout=_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    expect(waiting.done(), "half of it came")
    same((await box.exec("echo yes", timeout=60)).text, "yes\n")
    expect(not bulk.done(), "it waits for `go_on`")
    go_on.set()
    while not bulk.done():
        same((await box.exec("echo yes", timeout=60)).text, "yes\n")
    same(await bulk, f"{got.hexdigest()} {hashlib.sha256(b''.join(sent)).hexdigest()}")


_MANY = """
kept = socket.create_connection(here)
kept.sendall(b'x')
kept.recv(1)
async def one(n):
    reader, writer = await asyncio.open_connection('127.0.0.1', ports[n % 2])
    writer.write(b'%d' % n)
    writer.write_eof()
    return int(await reader.read()) == n
async def all():
    return await asyncio.gather(*map(one, range(200)))
print(sum(asyncio.run(all())))
"""


@CHECKS.add()
async def two_hundred_connections_at_once_are_bounded_and_all_are_served(box: Box) -> None:
    live, most, full = 0, 0, asyncio.Event()

    async def counting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal live, most
        live += 1
        most = max(most, live)
        if live == CONNECTIONS:
            full.set()
        if live > 1:
            await full.wait()  # now the maximum number of connections is open
        await echo(reader, writer)
        live -= 1

    ports = [await box.forward(0, counting) for _ in range(2)]
    same(await output_of(box, ports[0], f"ports = {ports}\n{_MANY}"), "200")
    same(most, CONNECTIONS)


@CHECKS.add()
async def a_program_that_never_reads_stops_its_handler_and_nothing_else(box: Box) -> None:
    sent, closed = 0, asyncio.Event()

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        try:
            while sent < 2 * kernel_bytes():
                writer.write(bytes(1 << 16))
                await writer.drain()
                sent += 1 << 16
        finally:
            closed.set()

    script = "c = socket.create_connection(here)\ntime.sleep(600)"
    deaf = program(await box.forward(0, endless), script)
    running = asyncio.create_task(box.exec(deaf, timeout=600))
    before = -1
    while not sent or sent != before:  # until the number stays the same while commands answer
        before = sent
        for _ in range(10):
            await box.exec(["true"], timeout=60)
    expect(0 < sent < kernel_bytes(), sent)
    same(await output_of(box, await box.forward(0, echo), ECHO), "hello")
    running.cancel()  # kills it, which resets the connection
    await asyncio.wait_for(closed.wait(), _SECONDS)


_FLOOD = """
c = socket.create_connection(here)
c.setblocking(False)
sent = 0
while select.select([], [c], [], 3)[1]:
    sent += c.send(bytes(1 << 16))
print(sent)
"""


@CHECKS.add()
async def what_no_handler_reads_is_not_kept(box: Box) -> None:
    stop = asyncio.Event()

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await stop.wait()

    port = await box.forward(0, deaf)
    size = int(await output_of(box, port, _FLOOD))
    expect(WINDOW < size < kernel_bytes(), size)
    stop.set()


def kernel_bytes() -> int:
    """Returns an upper bound for the number of bytes that a sender can write to a connection that nobody
    reads. Most of these bytes wait in the kernel. If a sender can write more, then the port relay stores
    bytes without limit, which is an error."""
    limits = [Path(f"/proc/sys/net/ipv4/tcp_{kind}mem").read_text() for kind in ("r", "w")]
    return 2 * sum(int(limit.split()[2]) for limit in limits) + (1 << 22)
