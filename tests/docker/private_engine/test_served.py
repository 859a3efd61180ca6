"""A server of boxes whose container engine is killed under load: clear failures, and nothing is left."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.docker.private_engine.engine import Engine
from tests.docker.serve.serving import Served, serving
from tests.until import until

pytestmark = [pytest.mark.docker, pytest.mark.full]
CLIENTS = 6


@pytest.fixture
def server(engine: Engine, tmp_path: Path) -> Iterator[Served]:
    flags = ("--max-boxes", "4", "--warm", "1", "--disk-mb", "16", "--queue-seconds", "5")
    with serving(*flags, DOCKER_HOST=engine.host, AIR_LOCK_DIR=str(tmp_path)) as it:
        yield it
    assert not engine.containers()
    assert not engine.programs()


async def test_an_engine_that_is_killed_under_load(engine: Engine, server: Served) -> None:
    answers: list[dict[str, Any]] = []
    going = True

    async def client(http: httpx.AsyncClient, number: int) -> None:
        program = {"language": "bash", "code": f"sleep 0.1; echo {number}", "run_timeout": 20}
        while going:
            answer = await http.post("/run_code", json=program)
            assert answer.status_code in (200, 504), answer.text
            if answer.status_code == 200:
                answers.append(answer.json())
                result = answers[-1]["run_result"]
                own = result is not None and result["stdout"] == f"{number}\n"
                assert own or answers[-1]["status"] == "SandboxError", answers[-1]

    def has(status: str, since: int = 0) -> bool:
        return any(answer["status"] == status for answer in answers[since:])

    async with httpx.AsyncClient(base_url=server.url, timeout=600) as http:
        clients = [asyncio.create_task(client(http, number)) for number in range(CLIENTS)]
        await until(lambda: has("Success"))
        await asyncio.to_thread(engine.kill)
        await until(lambda: has("SandboxError"))
        refused = await http.post("/v2/sandboxes", json={"templateID": "air-base"})
        assert (refused.status_code, refused.json()["code"]) == (503, 503)
        assert refused.headers["retry-after"]
        before = len(answers)
        await asyncio.to_thread(engine.start)
        await until(lambda: has("Success", before))
        going = False
        await asyncio.gather(*clients)
