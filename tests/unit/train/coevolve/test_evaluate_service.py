"""The service that answers questions stops the work for a client that hangs up, and says what stops a run."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

import httpx
import pytest

from air.errors import HangingToolError, UserCodeError
from air.train.coevolve.evaluate_service import TaskBody, result, serving_evaluations
from air.train.coevolve.executor import Executor
from air.worlds.proposals.scorer import Answered, Scorer
from tests.unit.worlds.proposals.stopped_worker import StoppedWorker


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
        serving_evaluations(cast(Executor, executor), "math") as url,
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


class Answering:
    """An executor whose answers need a comparison of expressions."""

    async def answers(
        self, questions: Sequence[str], k: int, max_turns: int, sampling: Mapping[str, Any]
    ) -> list[Answered]:
        return [Answered(["x*3", "3x"], 0.0) for _ in questions]


async def test_other_requests_are_served_while_answers_are_compared() -> None:
    async with (
        serving_evaluations(cast(Executor, Answering()), "math") as url,
        httpx.AsyncClient(trust_env=False, timeout=300) as http,
    ):
        body = {"tasks": [{"id": "0", "question": "x + x + x?"}], "k": 2}
        with StoppedWorker() as worker:
            asking = asyncio.create_task(http.post(f"{url}/evaluate", json=body))
            await worker.reached(asking)
            assert (await http.get(f"{url}/health")).json() == {"status": "ok"}
            assert not asking.done()
            assert not worker.goes_on
            worker.go_on()
            assert (await asking).json()["results"][0]["p_hat"] == 1.0


def test_answers_are_compared_by_the_rule_of_the_service() -> None:
    task = TaskBody(id="1", question="What is x + x?", answer="x + x")
    answered = Answered(["x*2", "2x", "x"], 0.0)
    assert result(task, answered, "math")["p_hat"] == pytest.approx(2 / 3)
    assert result(task, answered, "forms")["p_hat"] == 0.0


class Hanging:
    """An executor with a tool that hangs."""

    async def answers(self, *_: Any) -> list[Answered]:
        raise HangingToolError("it hangs", where="tool own", remedy="give it a time limit")


async def test_a_tool_that_hangs_stops_the_clients_run() -> None:
    """Otherwise, every proposal would be masked while the training of the proposer goes on."""
    async with serving_evaluations(cast(Executor, Hanging()), "math") as url:
        with pytest.raises(UserCodeError, match=r"/evaluate: tool own: it hangs — give it a time"):
            await Scorer(url, 2).answers("What is 3 + 4?")
