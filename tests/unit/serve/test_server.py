"""The server's socket."""

from __future__ import annotations

import asyncio
import socket

from air.serve.http.server import bind


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
