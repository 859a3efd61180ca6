"""A proxy between a client and a real OpenEnv server that drops, delays and errs at random."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from tests.until import until

KINDS = ("drop", "error", "garbage", "not a number", "late")


class FaultyProxy:
    """Copies messages between clients and the server at `url`, but harms some observations.

    Each observation has a fault with the probability `share`, one of `kinds`. `late` alone does no harm.
    `no answer` is a further kind, which a client only ends by its time-out. With `unreachable`, the server
    reports that it could not reach the tool. With `null`, the reward is null.

    With `once`, only steps have faults, and none comes again: not if the episode is repeated, and not if
    the action is sent again. An error then breaks nothing.
    """

    def __init__(self, url: str, share: float, seed: int) -> None:
        self._url, self.share, self._random = url, share, random.Random(seed)
        self.kinds: Sequence[str] = KINDS
        self.once = False
        self.faults: Counter[str] = Counter()
        self.open = 0
        self.acts: Mapping[str, str] = {}
        """The faults that an agent causes, by a text in its message."""
        self.clients: set[ServerConnection] = set()
        self.broken: set[ServerConnection] = set()
        """The clients whose environment answers every step with an error."""
        self.refusals = 0
        """The number of connections that the server refuses after an act `die`, until it is back."""
        self._refused = 0
        self._episodes: dict[ServerConnection, tuple[str, int]] = {}
        """The last message `reset` of each client, and the number of its steps since."""
        self._hit: set[tuple[str, int]] = set()
        self.wrecked: set[ServerConnection] = set()
        """The clients whose environment answers every message with an error. An act `break` adds its own."""

    async def handle(self, client: ServerConnection) -> None:
        """Serves one client."""
        if self._refused:
            self._refused -= 1
            self.faults["away"] += 1
            client.transport.abort()
            return
        self.open += 1
        self.clients.add(client)
        try:
            async with connect(f"{self._url.replace('http', 'ws')}/ws", proxy=None) as server:
                with contextlib.suppress(ConnectionClosed):
                    while True:
                        message = await _next(client, server)
                        with contextlib.suppress(ConnectionClosed):  # it may have said why before
                            await server.send(message)
                        await self._answer(client, server, str(message))
        finally:
            self.clients.discard(client)
            self._episodes.pop(client, None)
            self.open -= 1

    async def _answer(
        self, client: ServerConnection, server: ClientConnection, message: str
    ) -> None:
        answer = await server.recv()
        body = json.loads(answer)
        fault = next((fault for text, fault in self.acts.items() if text in message), "")
        if fault == "break":
            self.wrecked.add(client)
        if client in self.wrecked or (client in self.broken and '"step"' in message):
            fault = "error"
        elif not fault and self._may_fail(client, message, body):
            fault = self._random.choice(self.kinds)
        self.faults[fault] += 1
        if fault == "drop":
            client.transport.abort()
            await client.wait_closed()
        elif fault == "die":
            self._refused = self.refusals
            for each in list(self.clients):
                each.transport.abort()
            await client.wait_closed()
        elif fault == "no answer":
            await client.wait_closed()
        elif fault == "error":
            data = {"message": "out of memory", "code": "EXECUTION_ERROR"}
            await client.send(json.dumps({"type": "error", "data": data}))
        elif fault == "unreachable":
            error = {"error_type": "transport_error", "message": "no tool server"}
            body["data"]["observation"] = {"tool_name": "act", "result": None, "error": error}
            await client.send(json.dumps(body))
        elif fault == "null":
            body["data"]["reward"] = None
            await client.send(json.dumps(body))
        elif fault == "garbage":
            await client.send(answer[: len(answer) // 2])
        elif fault == "not a number":
            body["data"]["reward"] = float("nan")
            await client.send(json.dumps(body))
        else:
            await asyncio.sleep(self._random.uniform(0, 0.05) if fault == "late" else 0)
            await client.send(answer)

    def _may_fail(self, client: ServerConnection, message: str, body: Any) -> bool:
        """Whether this observation has a fault by chance."""
        if body["type"] != "observation":
            return False
        if not self.once:
            return self._random.random() < self.share
        if '"reset"' in message:
            self._episodes[client] = message, 0
            return False
        episode, steps = self._episodes[client]
        self._episodes[client] = episode, steps + 1
        near = {(episode, steps - 1), (episode, steps)}  # an action may be sent again at once
        fails = not near & self._hit and self._random.random() < self.share
        if fails:
            self._hit.add((episode, steps))
        return fails


async def _next(client: ServerConnection, server: ClientConnection) -> str | bytes:
    """The client's next message; raises ConnectionClosed if either side closes before."""
    asking = asyncio.create_task(client.recv())
    gone = asyncio.create_task(server.wait_closed())
    try:
        await asyncio.wait([asking, gone], return_when=asyncio.FIRST_COMPLETED)
        if asking.done():
            return asking.result()
        # What the server said before it closed, such as CAPACITY_REACHED.
        await client.send(await server.recv())
        await client.close()
        return await asking
    finally:
        for task in (asking, gone):
            task.cancel()
        await asyncio.gather(asking, gone, return_exceptions=True)


@asynccontextmanager
async def between(url: str, share: float, seed: int) -> AsyncIterator[tuple[str, FaultyProxy]]:
    """A proxy before the server at `url`; yields its own URL. No connection is left open at the end."""
    proxy = FaultyProxy(url, share, seed)
    server: Server
    async with serve(proxy.handle, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()[:2]
        yield f"http://{host}:{port}", proxy
        await until(lambda: not proxy.open)
