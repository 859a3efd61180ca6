"""The bounds of a server of boxes: its queue, paused sandboxes, snapshots, and many streams at once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from air.serve.http import metrics
from tests.docker.serve.serving import Served, serving
from tests.until import until

pytestmark = pytest.mark.docker
STREAMS = 200
PROGRAM = {"language": "bash", "code": "echo $((1 + 1))", "run_timeout": 600}
SANDBOX = {"templateID": "air-base", "timeout": 600}
LIMITS = httpx.Limits(max_connections=2 * STREAMS)


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    flags = ("--max-boxes", "4", "--warm", "0", "--disk-mb", "16", "--max-queued", "1")
    more = ("--max-paused", "1", "--max-snapshots", "1")
    with serving(*flags, *more, AIR_RUN="serve-bounds") as it:
        yield it


def value(server: Served, name: str) -> float:
    return metrics.parse(httpx.get(f"{server.url}/metrics", timeout=60).text).get(name, 0.0)


@contextlib.asynccontextmanager
async def sandboxes(client: httpx.AsyncClient, count: int) -> Any:
    """The answers to the creation of so many sandboxes, which are killed after the block."""
    made = [(await client.post("/v2/sandboxes", json=SANDBOX)).json() for _ in range(count)]
    try:
        yield made
    finally:
        for each in made:
            await client.delete(f"/sandboxes/{each['sandboxID']}")


async def test_a_full_queue_refuses_at_once(server: Served) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=600, limits=LIMITS) as client:
        async with sandboxes(client, 4):
            queued = asyncio.create_task(client.post("/run_code", json=PROGRAM))
            await until(lambda: value(server, "air_serve_queued") == 1)
            refused = await client.post("/run_code", json=PROGRAM)
            assert (refused.status_code, refused.headers["retry-after"]) == (504, "1")
            assert "and 1 requests wait" in refused.json()["detail"]
            refused = await client.post("/sandboxes", json=SANDBOX)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert value(server, "air_serve_queue_full_total") == 2
        assert (await queued).json()["run_result"]["stdout"] == "2\n"


async def test_paused_sandboxes_and_snapshots_are_bounded(server: Served) -> None:
    async with (
        httpx.AsyncClient(base_url=server.url, timeout=600) as client,
        sandboxes(client, 2) as (one, two),
    ):

        async def post(sandbox: dict[str, Any], path: str, **body: Any) -> tuple[int, str]:
            answer = await client.post(f"/sandboxes/{sandbox['sandboxID']}/{path}", json=body)
            return answer.status_code, answer.text

        assert (await post(one, "pause"))[0] == 204
        status, text = await post(two, "pause")
        assert (status, "1 sandboxes are paused already" in text) == (429, True)
        assert (await post(two, "timeout", timeout=600))[0] == 204  # it still runs
        assert value(server, "air_serve_sandboxes_paused") == 1
        status, text = await post(two, "snapshots")
        assert status == 201
        refused, why = await post(two, "pause", memory=False)
        assert (refused, "keeps 1 snapshots already" in why) == (429, True)
        assert (await post(two, "snapshots"))[0] == 429
        kept = json.loads(text)["snapshotID"]
        assert (await client.delete(f"/templates/{kept}")).status_code == 204
        assert (await post(two, "pause", memory=False))[0] == 204
        assert value(server, "air_serve_snapshots") == 1
        assert (await post(one, "connect"))[0] == 201
        assert (await post(two, "connect"))[0] == 201


def message(**fields: Any) -> bytes:
    """One message of a stream of envd's."""
    data = json.dumps(fields).encode()
    return struct.pack(">BI", 0, len(data)) + data


async def test_200_streams_are_served_at_once_and_leave_nothing(server: Served) -> None:
    descriptors = Path(f"/proc/{server.process.pid}/fd")

    def files() -> int:
        return len(list(descriptors.iterdir()))

    async with (
        httpx.AsyncClient(base_url=server.url, timeout=600, limits=LIMITS) as client,
        sandboxes(client, 1) as (sandbox,),
        contextlib.AsyncExitStack() as streams,
    ):
        headers = {
            "E2b-Sandbox-Id": sandbox["sandboxID"],
            "X-Access-Token": sandbox["envdAccessToken"],
            "Content-Type": "application/connect+json",
        }

        readers = []  # a reader that nobody holds would close its stream

        async def opened(path: str, **fields: Any) -> Any:
            """Opens a stream; returns its first message."""
            request = client.stream("POST", path, content=message(**fields), headers=headers)
            answer = await streams.enter_async_context(request)
            readers.append(reader := answer.aiter_raw())
            return json.loads((await anext(reader))[5:])

        argv = {"cmd": "/bin/bash", "args": ["-c", "sleep 600"]}
        first = await opened("/process.Process/Start", process=argv)
        before = files()
        wanted = {"pid": first["event"]["start"]["pid"]}
        await asyncio.gather(
            *(opened("/process.Process/Connect", process=wanted) for _ in range(STREAMS))
        )
        assert value(server, "air_serve_connections") >= STREAMS
        assert files() >= STREAMS
        ran = await client.post("/run_code", json=PROGRAM)  # the others are served
        assert ran.json()["run_result"]["stdout"] == "2\n"
        await streams.aclose()  # these clients leave
        await until(lambda: value(server, "air_serve_connections") < 20)
        await until(lambda: files() < before + 20)


async def test_a_tag_names_the_process_that_still_runs(server: Served) -> None:
    """No stream tells the server that the first one has ended: its client had left before."""
    async with (
        httpx.AsyncClient(base_url=server.url, timeout=600) as client,
        sandboxes(client, 1) as (sandbox,),
    ):
        headers = {
            "E2b-Sandbox-Id": sandbox["sandboxID"],
            "X-Access-Token": sandbox["envdAccessToken"],
            "Content-Type": "application/connect+json",
        }

        async def started(call: str, **fields: Any) -> dict[str, Any]:
            """Reads the first message of a call's stream, and leaves."""
            request = client.stream(
                "POST", f"/process.Process/{call}", content=message(**fields), headers=headers
            )
            async with request as answer, contextlib.aclosing(answer.aiter_raw()) as reader:
                first: dict[str, Any] = json.loads((await anext(reader))[5:])
                return first

        def shell(script: str) -> dict[str, Any]:
            return {"cmd": "/bin/bash", "args": ["-c", script]}

        waits = shell("until [ -e go ]; do sleep 0.05; done")
        first = await started("Start", process=waits, tag="it")
        second = await started("Start", process=shell("sleep 600"), tag="it")
        assert first != second
        pid = first["event"]["start"]["pid"]
        ends = shell(f"touch go; while kill -0 {pid}; do sleep 0.05; done")
        content = message(process=ends)
        answer = await client.post("/process.Process/Start", content=content, headers=headers)
        assert b"exit status 0" in answer.content
        assert await started("Connect", process={"tag": "it"}) == second
