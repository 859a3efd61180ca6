"""A server of boxes under load and faults: boxes are killed, the engine is killed and started again, its disk
is full for a while, and clients leave. The account is exact: each request ends in its own output or in a
named failure of the server, unless its client leaves; and nothing is left."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import random
import re
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.docker.private_engine import supervisor
from tests.docker.private_engine.engine import Engine
from tests.docker.serve.serving import Served, serving
from tests.until import until

pytestmark = [pytest.mark.docker, pytest.mark.full]
REQUESTS = 10_000
FUSION_CLIENTS, E2B_CLIENTS, BOXES = 10, 4, 8
KILLS_EACH = 25
"""One box is killed from outside after so many requests."""
LEAVES_EACH = 20
"""One client in so many leaves."""
COMMANDS = 10
"""So many commands run in one E2B sandbox, if it lives so long."""
OWN, LEFT = "own output", "client left"
SERVER_ERRORS = {502, 503, 504}
NONCE = re.compile(r"nonce-\d+-[0-9a-f]{16}")
PROGRAMS = {
    "python": ("python", "print('{}')", "Success"),
    "bash": ("bash", "echo {}", "Success"),
    "stays behind": ("bash", "echo {}; sleep 600 > /dev/null 2>&1 &", "Success"),
    "full workspace": ("bash", "echo {}; cat /dev/zero > big", "Failed"),
    "too long": ("bash", "echo {}; sleep 600", "Failed"),
    "kills itself": ("bash", "echo {}; kill -9 $$", "Failed"),
}
"""The language, the code, in which the nonce is put, and the status of the answer."""
WEIGHTS = [16, 16, 2, 2, 1, 2]


class Load:
    """The requests of all clients, and what became of them."""

    def __init__(self, http: httpx.AsyncClient, engine: Engine) -> None:
        self._http, self._engine = http, engine
        self._chance, self._numbers = random.Random(15), itertools.count()
        self.ends: dict[str, Counter[str]] = {"fusion": Counter(), "e2b": Counter()}
        self._parts: dict[int, asyncio.Event] = {}
        self.refusals: list[str] = []
        """Why sandboxes were not created. The requests that create them are not among `REQUESTS`."""
        self.kills = 0
        """The number of boxes that were killed from outside."""

    def ended(self) -> int:
        return sum(ends.total() for ends in self.ends.values())

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(FUSION_CLIENTS):
                group.create_task(self._fusion_client())
            for _ in range(E2B_CLIENTS):
                group.create_task(self._e2b_client())

    async def reached(self, part: float) -> None:
        """Returns when this part of the requests has begun."""
        event = self._parts[int(part * REQUESTS)] = asyncio.Event()
        await event.wait()

    def _next(self) -> tuple[int, str] | None:
        number = next(self._numbers)
        for first, event in self._parts.items():
            if number >= first:
                event.set()
        nonce = f"nonce-{number}-{self._chance.getrandbits(64):016x}"
        return (number, nonce) if number < REQUESTS else None

    async def _answer(self, number: int, **post: Any) -> httpx.Response | None:
        """The answer to a request; None if its client has left before."""
        if number % KILLS_EACH == KILLS_EACH - 1:
            await asyncio.to_thread(self._kill_a_box)
        sent = self._http.post(**post)
        if number % LEAVES_EACH != 7:
            return await sent
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(sent, self._chance.uniform(0.0, 0.3))
        return None

    def _kill_a_box(self) -> None:
        socket = httpx.HTTPTransport(uds=self._engine.host.removeprefix("unix://"))
        with (
            contextlib.suppress(httpx.TransportError),  # the engine may be away
            httpx.Client(transport=socket, base_url="http://engine", timeout=60) as client,
        ):
            boxes = client.get("/containers/json").json()
            if boxes:
                killed = client.post(f"/containers/{self._chance.choice(boxes)['Id']}/kill")
                self.kills += killed.status_code == 204  # else it has ended by itself

    # SandboxFusion

    async def _fusion_client(self) -> None:
        while (following := self._next()) is not None:
            number, nonce = following
            name = self._chance.choices([*PROGRAMS], weights=WEIGHTS)[0]
            language, code, status = PROGRAMS[name]
            seconds = 3 if name == "too long" else 60
            body = {"language": language, "code": code.format(nonce), "run_timeout": seconds}
            answer = await self._answer(number, url="/run_code", json=body)
            self.ends["fusion"][_fusion_end(answer, nonce, status)] += 1

    # E2B

    async def _e2b_client(self) -> None:
        headers: dict[str, str] | None = None
        for count in itertools.count():
            if count % COMMANDS == 0 and headers is not None:
                await self._end(headers)
                headers = None
            if (following := self._next()) is None:
                break
            number, nonce = following
            while headers is None:
                headers = await self._create()
            end = _e2b_end(await self._command(number, nonce, headers), nonce)
            self.ends["e2b"][end] += 1
            if end not in (OWN, LEFT):
                await self._end(headers)
                headers = None
        if headers is not None:
            await self._end(headers)

    async def _create(self) -> dict[str, str] | None:
        body = {"templateID": "air-base", "timeout": 3600}
        answer = await self._http.post("/v2/sandboxes", json=body)
        made = answer.json()
        if answer.status_code == 201:
            return {"E2b-Sandbox-Id": made["sandboxID"], "X-Access-Token": made["envdAccessToken"]}
        assert answer.status_code in SERVER_ERRORS | {429}, answer.text
        assert made["code"] == answer.status_code
        assert made["message"]
        self.refusals.append(made["message"])
        await asyncio.sleep(0.2)
        return None

    async def _end(self, headers: dict[str, str]) -> None:
        answer = await self._http.delete(f"/sandboxes/{headers['E2b-Sandbox-Id']}")
        assert answer.status_code in (204, 404), answer.text

    async def _command(
        self, number: int, nonce: str, headers: dict[str, str]
    ) -> httpx.Response | None:
        command = {"process": {"cmd": "bash", "args": ["-c", f"echo {nonce}"]}, "stdin": False}
        body = json.dumps(command).encode()
        return await self._answer(
            number,
            url="/process.Process/Start",
            content=struct.pack(">BI", 0, len(body)) + body,
            headers=headers | {"Content-Type": "application/connect+json"},
        )


def _fusion_end(answer: httpx.Response | None, nonce: str, status: str) -> str:
    """What became of a request; fails if it is none of the ends that a client may see."""
    if answer is None:
        return LEFT
    assert set(NONCE.findall(answer.text)) <= {nonce}, answer.text
    body = answer.json()
    if answer.status_code != 200:
        assert answer.status_code == 504, answer.text
        assert body["detail"]
        return "504"
    if body["status"] == "SandboxError":
        assert (body["run_result"], bool(body["message"])) == (None, True), body
        return "SandboxError"
    assert (body["run_result"]["stdout"], body["status"]) == (f"{nonce}\n", status), body
    return OWN


def _e2b_end(answer: httpx.Response | None, nonce: str) -> str:
    if answer is None:
        return LEFT
    if answer.status_code != 200:
        body = answer.json()
        assert answer.status_code in SERVER_ERRORS, answer.text
        assert body["code"] == answer.status_code
        assert body["message"]
        return str(answer.status_code)
    messages = [*_messages(answer.content)]
    last = messages[-1]
    if "error" in last:
        assert last["error"]["code"] == "unavailable", messages
        assert last["error"]["message"]
        return "unavailable"
    events = [message["event"] for message in messages if "event" in message]
    ends = [event["end"] for event in events if "end" in event]
    pieces = [event["data"]["stdout"] for event in events if "data" in event]
    assert (len(ends), last, _decoded(pieces)) == (1, {}, f"{nonce}\n"), messages
    assert ends[0].get("exitCode", 0) == 0, messages
    return OWN


def _decoded(pieces: list[str]) -> str:
    return b"".join(base64.b64decode(piece) for piece in pieces).decode()


def _messages(data: bytes) -> Iterator[dict[str, Any]]:
    """The messages of a stream, the last of which has the flag 2."""
    flag = 0
    while data:
        assert flag == 0
        flag, size = struct.unpack_from(">BI", data)
        yield json.loads(data[5 : 5 + size])
        data = data[5 + size :]
    assert flag == 2


@contextlib.contextmanager
def _full(folder: Path) -> Iterator[None]:
    """The disk of this folder is full."""
    fill = folder / "fill"
    try:
        with fill.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(1 << 16)):  # others write meanwhile: no size is the right one
                pass
        yield
    finally:
        fill.unlink()


async def _faults(load: Load, engine: Engine) -> None:
    """A full disk, and then twice a killed engine; each until clients have seen it."""
    await load.reached(0.25)
    with _full(engine.data):
        await until(lambda: any("no space left on device" in text for text in load.refusals))
    for part in (0.5, 0.75):
        await load.reached(part)
        await asyncio.to_thread(engine.kill)
        await _both_fail(load)
        await asyncio.to_thread(engine.start)


async def _both_fail(load: Load) -> None:
    """Returns when a client of each protocol has seen a further failure."""
    failed, refused = load.ends["fusion"]["SandboxError"], len(load.refusals)
    await until(lambda: load.ends["fusion"]["SandboxError"] > failed)
    await until(lambda: len(load.refusals) > refused)


@pytest.fixture
def server(engine: Engine, tmp_path: Path) -> Iterator[Served]:
    flags = ("--max-boxes", str(BOXES), "--warm", "1", "--disk-mb", "16", "--queue-seconds", "20")
    with serving(*flags, DOCKER_HOST=engine.host, AIR_LOCK_DIR=str(tmp_path)) as it:
        yield it
    supervisor.until(lambda: not engine.programs(), "an end of all boxes")
    assert not engine.containers()
    assert not engine.volumes()


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # of the engine's `start`
async def test_each_request_ends_in_its_own_output_or_in_a_named_failure(
    engine: Engine, server: Served
) -> None:
    limits = httpx.Limits(max_connections=100)
    async with httpx.AsyncClient(base_url=server.url, timeout=600, limits=limits) as http:
        load = Load(http, engine)
        async with asyncio.TaskGroup() as group:
            faults = group.create_task(_faults(load, engine))
            await load.run()
            await faults
    assert load.ended() == REQUESTS
    assert load.kills > REQUESTS / KILLS_EACH / 2
    for kind in load.ends:
        assert load.ends[kind][OWN] > load.ends[kind].total() / 2, load.ends
        assert load.ends[kind][LEFT] > 0
    boxes = server.boxes
    await until(lambda: boxes()["lent"] == boxes()["queued"] == 0, every=0.1)
    _compare_with_log(server, load.ends["fusion"])


def _compare_with_log(server: Served, ends: Counter[str]) -> None:
    """The server's log has each request once, with the same end; also those whose clients left."""
    logged = Counter(
        str(line.get("result") or line["status"])
        for line in server.log()
        if line.get("path") == "/run_code"
    )
    assert ends.total() - ends[LEFT] <= logged.total() <= ends.total()
    for end in ("SandboxError", "504"):
        assert ends[end] <= logged[end] <= ends[end] + ends[LEFT], (ends, logged)
    own = logged["Success"] + logged["Failed"]
    assert ends[OWN] <= own <= ends[OWN] + ends[LEFT], (ends, logged)
