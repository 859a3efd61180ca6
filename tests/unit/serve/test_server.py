"""The addresses on which a server may listen, and its socket."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Iterator

import pytest

from air.cli.main import main
from air.serve.http.server import bind
from tests.until import SECONDS

KINDS = [
    ["sandbox"],
    ["openenv", "game:hanoi"],
    ["ors", "game:hanoi"],
    ["rollouts"],
    ["tools", "calculator"],
    ["evaluate", "http://127.0.0.1:9/v1", "--model-name", "m"],
]


@pytest.fixture(autouse=True)
def _deadline() -> Iterator[None]:
    """A test fails after 2 minutes. A server that starts although it should refuse would run for ever in this
    process."""

    def end(*_: object) -> None:
        raise AssertionError(f"no end within {SECONDS:g} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind[0])
def test_another_address_than_loopback_needs_a_token(
    kind: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The rule is the same for all kinds of servers."""
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.com"):
        assert main(["serve", *kind, "--host", host, "--port", "0", "--token", ""]) == 2
        text = f"`host`: {host} is not loopback, so other machines need a `token`"
        assert text in capsys.readouterr().err


async def test_an_answer_is_sent_without_delay() -> None:
    """Otherwise the body of each answer waits until the client has acknowledged its head."""
    delays: asyncio.Queue[int] = asyncio.Queue()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted = writer.get_extra_info("socket")
        delays.put_nowait(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    listener = bind("127.0.0.1", 0)
    async with await asyncio.start_server(serve, sock=listener):
        _, writer = await asyncio.open_connection(*listener.getsockname())
        assert await delays.get() != 0
        writer.close()
        await writer.wait_closed()
