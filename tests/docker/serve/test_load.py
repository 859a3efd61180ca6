"""A server under load and faults: no answer is lost or belongs to another request, and no box remains."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections import Counter

import httpx
import pytest
from docker.errors import APIError

from tests.docker.client import boxes_of, docker_client
from tests.docker.serve.serving import Served, serving
from tests.until import until

pytestmark = pytest.mark.docker
REQUESTS = 10_000 if os.environ.get("AIR_FULL") else 40
CLIENTS, BOXES = 16, 3
KILLS_EACH = 20
"""One box is killed from outside after so many requests."""

ECHO = "import sys; print(sys.stdin.read(), end='')"
PROGRAMS = {
    "python": ("python", ECHO, {"Success"}),
    "bash": ("bash", "cat", {"Success"}),
    "stays behind": ("bash", "cat; sleep 600 > /dev/null 2>&1 &", {"Success"}),
    "full disk": (
        "python",
        f"{ECHO}\nf = open('big', 'wb', 0)\nwhile f.write(bytes(1 << 20)) == 1 << 20: pass",
        {"Success", "Failed"},
    ),
    "too long": ("python", f"{ECHO}\nsys.stdout.flush()\nwhile True: pass", {"Failed"}),
    "kills itself": ("bash", "cat; kill -9 $$", {"Failed"}),
}


async def _one(client: httpx.AsyncClient, number: int, chance: random.Random) -> str:
    """Sends one request, and returns what became of it."""
    name = chance.choices([*PROGRAMS], weights=[8, 8, 1, 1, 1, 1])[0]
    language, code, statuses = PROGRAMS[name]
    token = f"token-{number}"
    body = {"language": language, "code": code, "stdin": token, "run_timeout": 30}
    body |= {"run_timeout": 1} if name == "too long" else {}
    post = client.post("/run_code", json=body)
    if number % 20 == 7:  # this client leaves
        try:
            await asyncio.wait_for(post, 0.05)
        except TimeoutError:
            return "left"
        return "answered in time"
    answer = await post
    if answer.status_code == 504:
        return "no box in time"
    assert answer.status_code == 200, answer.text
    result = answer.json()
    if result["status"] == "SandboxError":  # a killed box, twice in a row
        return "failed by a fault of ours"
    output = result["run_result"]["stdout"]
    if result["run_result"]["return_code"] == 137 and not output:  # its box was killed
        return "killed"
    assert output == token, f"{name}: {result}"
    assert result["status"] in statuses, f"{name}: {result}"
    return name


async def _kill_one(run: str) -> None:
    boxes = await asyncio.to_thread(boxes_of, run)
    if boxes:
        await asyncio.to_thread(_kill, boxes[0]["Id"])


def _kill(container: str) -> None:
    with docker_client() as client, contextlib.suppress(APIError):  # it may have ended by itself
        client.containers.get(container).kill()


async def _load(served: Served, run: str) -> Counter[str]:
    chance, numbers, outcomes = random.Random(15), iter(range(REQUESTS)), Counter[str]()
    limits = httpx.Limits(max_connections=2 * CLIENTS)
    async with httpx.AsyncClient(base_url=served.url, timeout=300, limits=limits) as client:

        async def worker() -> None:
            for number in numbers:
                if number % KILLS_EACH == KILLS_EACH - 1:
                    await _kill_one(run)
                outcomes[await _one(client, number, chance)] += 1

        await asyncio.gather(*(worker() for _ in range(CLIENTS)))
    return outcomes


async def test_no_request_is_lost_or_gets_the_output_of_another() -> None:
    run = f"load-{os.getpid()}"
    flags = ("--max-boxes", str(BOXES), "--warm", "1", "--disk-mb", "16", "--queue-seconds", "250")
    with serving(*flags, AIR_RUN=run) as served:
        outcomes = await _load(served, run)
        assert outcomes.total() == REQUESTS
        faults = outcomes["failed by a fault of ours"] + outcomes["killed"]
        assert faults <= 2 * (REQUESTS // KILLS_EACH), outcomes
        assert outcomes["python"] + outcomes["bash"] > REQUESTS / 3, outcomes

        def idle() -> bool:
            boxes = served.boxes()
            return bool(boxes["lent"] == boxes["queued"] == 0)

        await until(idle, every=0.1)
        requests = [line for line in served.log() if line.get("path") == "/run_code"]
        assert REQUESTS - outcomes["left"] <= len(requests) <= REQUESTS
    assert boxes_of(run) == []
