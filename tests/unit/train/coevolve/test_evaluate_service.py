"""The service that answers questions stops the work for a client that hangs up."""

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
