"""A small server with AgentGym's requests, that fails at random: for tests of what happens then.

Its game is a corridor: the goal is `length` steps of "forward" away, "back" goes one step back, and any other
action changes nothing. The goal is worth 1. The server plays it by the protocol of textcraft, or of another
environment whose rows of answers a test gives. `python -m tests.environment_server` serves without faults.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

LENGTH = 3
FAULTS = (
    "drop before",
    "drop after",
    "delay",
    "hang",
    "status 500",
    "status 503",
    "garbage",
    "cut short",
    "wrong form",
    "not a number",
    "error body",
)
"""What may happen to a request; those that are named "after" or later are carried out before they fail."""
_UNDONE = ("drop before", "status 503", "error body")


@dataclass
class Session:
    """One corridor: where the agent is, and how often it acted."""

    place: int = 0
    actions: int = 0
    broken: bool = False
    """Whether every further request for it fails."""
    task: int = -1
    requests: int = 0
    """How many actions it was sent, those that had a fault included."""


@dataclass
class FaultyServer:
    """The server's state, which a test reads. `rate` is the share of requests that fail."""

    rate: float = 0.0
    once: bool = False
    """Whether only actions have faults. None of them breaks the session, and none comes again: not if the
    episode is repeated, and not if the action is sent again."""
    seed: int = 0
    kinds: tuple[str, ...] = FAULTS
    hang_seconds: float = 30.0
    url: str = ""
    sessions: dict[int, Session] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)
    requests: Counter[str] = field(default_factory=Counter)
    connections: int = 0
    most_connections: int = 0
    most_sessions: int = 0
    unsure: set[int] = field(default_factory=set)
    """The sessions whose `create` or `close` had a fault, so that they may stay open."""
    created: int = 0
    acts: Mapping[str, str] = field(default_factory=dict)
    """The faults that an agent causes, by its action. `stall` keeps the whole server busy for some seconds
    (`stall_seconds`), `die` restarts it after as long."""
    planned: list[tuple[str, str]] = field(default_factory=list)
    """The faults to come, each with the path of the request that it meets. Each comes once."""
    stall_seconds: float = 0.0
    data: list[int] = field(default_factory=list)
    """The ids of the tasks that were started."""
    _hit: set[tuple[int, int]] = field(default_factory=set)
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _random: random.Random = field(default_factory=random.Random)
    _busy: asyncio.Lock = field(default_factory=asyncio.Lock)
    _dead: bool = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[FaultyServer]:
        """Async context manager: serves on a free port of loopback during the block."""
        self._random.seed(self.seed)
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=2048)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await server.wait_closed()

    async def idle(self) -> None:
        """Waits until every connection is closed."""
        while self.connections:
            await self._changed.wait()

    async def seen(self, path: str, count: int) -> None:
        """Waits until `count` requests to a path have come."""
        while self.requests[path] < count:
            await self._changed.wait()

    def restart(self) -> None:
        """Forgets all sessions and counts them from 0 again, as a server does that was restarted."""
        self.sessions.clear()
        self.created = 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self.most_connections = max(self.most_connections, self.connections)
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client has left, or the test is over
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()
            self.connections -= 1
            self._notify()
            self._tasks.discard(task)

    def _notify(self) -> None:
        """Wakes whoever waits for a change."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answers one request; returns whether the connection stays open."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path, _, query = head.split()[1].partition("?")
        lengths = [
            int(line.partition(":")[2])
            for line in head.splitlines()
            if line.lower().startswith("content-length")
        ]
        raw = await reader.readexactly(lengths[0] if lengths else 0)
        body = json.loads(raw) if raw else {k: int(v) for k, v in parse_qsl(query)}
        self.requests[path] += 1
        self._notify()
        async with self._busy:
            fault = self._fault(path, body)
            if fault in ("stall", "die"):
                await self._down(fault)
        if self._dead or fault in ("drop before", "die"):
            return False
        if fault == "delay":
            await asyncio.sleep(0.02)
        answer: Any = {"error": "the server has a bad day"}
        if fault not in _UNDONE:
            answer = self.answer(path, body)
        if fault == "hang":
            with contextlib.suppress(TimeoutError):  # until then, or until the client leaves
                await asyncio.wait_for(reader.read(1), self.hang_seconds)
        return await self._send(writer, fault, answer)

    async def _down(self, fault: str) -> None:
        """Answers nobody for a while. A server that died drops every request, and forgets its sessions."""
        if fault == "stall":
            await asyncio.sleep(self.stall_seconds)
            return
        self._dead = True
        self.restart()
        asyncio.get_running_loop().call_later(self.stall_seconds, self._revive)

    def _revive(self) -> None:
        self._dead = False

    def _fault(self, path: str, body: Mapping[str, Any]) -> str:
        if fault := self.acts.get(body.get("action", "")):
            return fault
        if self.planned and self.planned[0][0] == path:
            return self.planned.pop(0)[1]
        if not self._may_fail(path, body):
            return ""
        fault = self._random.choice(self.kinds)
        self.faults[fault] += 1
        session = body.get("id", self.created)
        if path in ("/create", "/close") and fault != "delay":
            self.unsure.add(session)
        if fault == "error body" and not self.once and session in self.sessions:
            self.sessions[session].broken = True
        return fault

    def _may_fail(self, path: str, body: Mapping[str, Any]) -> bool:
        """Whether this request has a fault by chance."""
        if not self.once:
            return self._random.random() < self.rate
        session = self.sessions.get(body.get("id", -1))
        # The harmless action of textcraft is no action of the episode.
        if path != "/step" or session is None or body["action"] == "inventory":
            return False
        session.requests += 1
        task, count = session.task, session.requests
        near = {(task, count - 1), (task, count)}  # an action may be sent again at once
        fails = not near & self._hit and self._random.random() < self.rate
        if fails:
            self._hit.add((task, count))
        return fails

    async def _send(self, writer: asyncio.StreamWriter, fault: str, answer: Any) -> bool:
        text = json.dumps(answer)
        if fault == "garbage":
            text = "<html>gateway</html>"
        elif fault == "wrong form":
            text = json.dumps({"obs": "?"})
        elif fault == "huge":
            text = json.dumps({"observation": "a" * 5_000_000})
        elif fault == "not a number" and isinstance(answer, dict) and "reward" in answer:
            text = json.dumps(answer | {"reward": float("nan")})
        if fault == "drop after":
            return False
        status = fault.split()[1] if fault.startswith("status") else "200"
        data = text.encode()
        head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + (data[: len(data) // 2] if fault == "cut short" else data))
        await writer.drain()
        return fault != "cut short"

    def answer(self, path: str, body: Mapping[str, Any]) -> Any:
        """Carries out one request of textcraft's protocol and returns its answer."""
        if path == "/create":
            session, self.created = self.created, self.created + 1
            self.sessions[session] = Session()
            self.most_sessions = max(self.most_sessions, len(self.sessions))
            return {"id": session, "observation": "?", "done": False, "reward": 0}
        state = self.sessions.get(body["id"])
        if path == "/close":
            return self.sessions.pop(body["id"], None) is not None
        if state is None or state.broken:
            return {"error": f"The id {body['id']} is not valid."}
        if path == "/reset":
            self.data.append(body["data_idx"])
            self.sessions[body["id"]] = Session(task=body["data_idx"])
            return {
                "id": body["id"],
                "observation": f"Goal: {LENGTH} forward.",
                "done": False,
                "reward": 0,
            }
        return self.step(state, body["action"])

    def step(self, state: Session, action: str) -> Any:
        """Carries out one action in a corridor."""
        if action == "explode":
            return {"error": "this action cannot be parsed"}
        state.actions += 1
        state.place += {"forward": 1, "back": -1}.get(action, 0)
        done = state.place >= LENGTH
        return {"observation": f"place {state.place}", "reward": int(done), "done": done}


async def _main() -> None:
    """Serves without faults until the process is ended."""
    async with FaultyServer().running() as server:
        print(f"serving on {server.url}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main())
