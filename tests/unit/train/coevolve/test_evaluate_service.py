"""The service that answers questions stops the work for a client that hangs up, and answers no web page of
another site."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

import httpx

from air.train.coevolve.evaluate_service import serving_evaluations
from air.train.coevolve.executor import Executor
from air.worlds.proposals.scorer import Answered


class Endless:
    """An executor that never ends its answers to one question."""

    def __init__(self) -> None:
        self.begun, self.cancelled = asyncio.Event(), asyncio.Event()

    async def answers(
        self, questions: Sequence[str], k: int, max_turns: int, sampling: Mapping[str, Any]
    ) -> list[Answered]:
        if questions == ["short"]:
            return [Answered(["2"] * k, 0.0)]
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()
        raise AssertionError("unreachable")


async def test_work_for_a_client_that_hangs_up_ends() -> None:
    executor = Endless()
    async with (
        serving_evaluations(cast(Executor, executor)) as url,
        httpx.AsyncClient(trust_env=False, timeout=60) as http,
    ):

        async def ask(question: str) -> Any:
            body = {"tasks": [{"id": "0", "question": question}], "k": 2}
            return (await http.post(f"{url}/evaluate", json=body)).json()

        assert (await ask("short"))["results"][0]["answers"] == ["2", "2"]
        assert "question" in (await ask(" \n"))["error"]
        asking = asyncio.create_task(ask("long"))
        await executor.begun.wait()
        asking.cancel()
        await asyncio.wait_for(executor.cancelled.wait(), 60)


async def test_a_page_of_another_site_gets_no_answers() -> None:
    """Its own name may mean this machine (then the Host is foreign), or it sends to a loopback address."""
    body = '{"tasks": [{"id": "0", "question": "short"}], "k": 2}'
    foreign = ({"host": "example.com"}, {"origin": "http://example.com"}, {"origin": "null"})
    own: tuple[dict[str, str], ...] = (
        {},
        {"host": "localhost:80"},
        {"origin": "http://localhost:3000"},
    )
    async with (
        serving_evaluations(cast(Executor, Endless())) as url,
        httpx.AsyncClient(trust_env=False, timeout=60) as http,
    ):

        async def status(headers: dict[str, str]) -> int:
            headers = {"content-type": "text/plain", **headers}
            answer = await http.post(f"{url}/evaluate", content=body, headers=headers)
            return answer.status_code

        assert [await status(headers) for headers in foreign] == [403] * 3
        assert [await status(headers) for headers in own] == [200] * 3
