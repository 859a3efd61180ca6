"""`air serve evaluate`: answers of a scripted endpoint and of a real small model; clients and bounds."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from air.errors import InfrastructureError
from air.serve.app import application
from air.serve.evaluate.protocol import Evaluate, opened
from air.serve.evaluate.settings import EvaluateConfig
from air.serve.log import Log
from air.serve.metrics import Metrics
from air.serve.request_queue import RequestQueue
from air.testing import ScriptedServer
from air.worlds.proposals.scorer import Scorer
from tests.tools_server import running
from tests.until import until

TASKS = [
    {"id": "a", "question": "What is 2 + 2?", "answer": "4"},
    {"id": "b", "question": "What is 2 + 3?"},
    {"id": "c", "question": "What is 2 + 4?", "answer": "7"},
]
RESULT = {"id", "p_hat", "majority", "n_valid", "k", "tool_calls_mean", "answers"}


@asynccontextmanager
async def service(**settings: Any) -> AsyncIterator[tuple[RequestQueue, httpx.AsyncClient]]:
    """The queue of a service, and a client of it."""
    async with AsyncExitStack() as stack:
        config = EvaluateConfig(**settings)
        server = await stack.enter_async_context(opened(config, Metrics(), Log(io.StringIO())))
        url = await stack.enter_async_context(running(application(server, [Evaluate(server)])))
        client = httpx.AsyncClient(base_url=url, timeout=300)
        yield server.queue, await stack.enter_async_context(client)


def solved(messages: Sequence[Any]) -> str:
    """Knows one sum, has no idea of another, and is always wrong about the third."""
    text = str(messages[-1]["content"])
    return "\\boxed{4}" if "2 + 2" in text else "no idea" if "2 + 3" in text else "\\boxed{6}"


async def test_answers_of_an_endpoint_are_counted_as_specified() -> None:
    with ScriptedServer(solved) as model:
        async with service(model=model.url, model_name="m") as (_, http):
            answer = await http.post("/evaluate", json={"tasks": TASKS, "k": 3})
            assert answer.status_code == 200, answer.text
            results = answer.json()["results"]
            assert [one["id"] for one in results] == ["a", "b", "c"]
            assert all(one.keys() == RESULT for one in results)
            assert [one["p_hat"] for one in results] == [
                1,
                0,
                0,
            ]  # c: the proposer is of another mind
            assert [one["majority"] for one in results] == ["4", None, "6"]
            assert [one["n_valid"] for one in results] == [3, 0, 3]
            assert results[1]["answers"] == [None] * 3
            answered = await Scorer(str(http.base_url), k=2).answers("What is 2 + 2?")
            assert (list(answered.answers), answered.tool_calls) == (["4", "4"], 0)
            health = (await http.get("/health")).json()
            assert (health["model"], health["requests"]["running"]) == ("m", 0)
            metrics = (await http.get("/metrics")).text
            assert 'air_serve_requests_total{code="200",path="/evaluate"} 2' in metrics
            page = {"origin": "http://example.com", "content-type": "text/plain"}
            refused = await http.post("/evaluate", content="{}", headers=page)
            assert refused.status_code == 403
            rebound = await http.get("/health", headers={"host": "example.com"})
            assert rebound.status_code == 403


async def test_a_client_that_leaves_makes_room_and_a_full_queue_refuses() -> None:
    go, asked = threading.Event(), threading.Event()

    def script(_: Sequence[Any]) -> str:
        asked.set()
        go.wait()
        return "\\boxed{4}"

    body = {"tasks": TASKS[:1], "k": 1}
    settings: dict[str, Any] = {"model_name": "m", "max_requests": 1, "max_queued": 1}
    with ScriptedServer(script) as model:
        async with service(model=model.url, **settings) as (queue, http):
            first = asyncio.create_task(http.post("/evaluate", json=body))
            await until(asked.is_set)
            second = asyncio.create_task(http.post("/evaluate", json=body))
            await until(lambda: queue.waiting == 1)
            third = await http.post("/evaluate", json=body)
            assert (third.status_code, third.headers["retry-after"]) == (503, "1")
            first.cancel()  # no reply has come yet, and the second request begins
            await asyncio.gather(first, return_exceptions=True)
            await until(lambda: queue.waiting == 0)
            go.set()
            assert (await second).json()["results"][0]["answers"] == ["4"]


async def test_a_failure_of_the_model_is_no_score() -> None:
    async with service(model="http://127.0.0.1:9/v1", model_name="m") as (_, http):
        answer = await http.post("/evaluate", json={"tasks": TASKS, "k": 2})
        assert answer.status_code == 503
        assert answer.json().keys() == {"error"}
        with pytest.raises(InfrastructureError, match="status 503"):
            await Scorer(str(http.base_url), k=2).answers("What is 2 + 2?")
        malformed = await http.post("/evaluate", json={"tasks": [], "k": 2})
        assert malformed.status_code == 400


async def test_a_real_small_model_answers_the_same_again(small: Path) -> None:
    body = {"tasks": TASKS[:2], "k": 2, "sampling": {"max_tokens": 4}}
    async with service(model=str(small), context=256) as (_, http):
        first = await http.post("/evaluate", json=body)
        assert first.status_code == 200, first.text
        assert (await http.post("/evaluate", json=body)).json() == first.json()
        assert [one["k"] for one in first.json()["results"]] == [2, 2]


def test_an_endpoint_needs_a_name_and_nothing_else_has_one(tmp_path: Path) -> None:
    for settings in ({"model": "http://h/v1"}, {"model": str(tmp_path), "model_name": "m"}):
        with pytest.raises(ValueError, match="model_name"):
            EvaluateConfig(**settings)


def test_another_address_needs_a_token() -> None:
    with pytest.raises(ValueError, match="other machines need a `token`"):
        EvaluateConfig(model="http://h/v1", model_name="m", host="0.0.0.0")
