"""While answers are compared, the event loop goes on. A cancelled caller begins no further comparison."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from air.actions import Action
from air.rewards.proposals.agreement import _measured, _values, agreement, equal_answers
from air.worlds import sources
from air.worlds.proposals.comparison_threads import compare_in_thread
from tests.unit.worlds.proposals.stopped_worker import StoppedWorker
from tests.unit.worlds.proposals.test_proposer import answering, load, service


async def test_an_episode_does_not_stop_the_others_while_its_answer_is_compared(
    tmp_path: Path,
) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"question": "x + x?", "answer": "2x"}))
    (tmp_path / "posed.json").write_text(json.dumps({"rows": "rows.jsonl"}))
    world = sources.load(f"posed:{tmp_path}/posed.json").make()
    await world.reset(0)
    with StoppedWorker() as worker:
        step = asyncio.create_task(world.step(Action(answer="\\boxed{x*2 + 0}")))
        await worker.reached(step)
        worker.go_on()
        assert (await step).reward == 1.0


async def test_a_proposal_does_not_stop_the_others_while_its_answers_are_compared(
    tmp_path: Path,
) -> None:
    proposal = "<question>What is x + x + 1?</question> \\boxed{2x + 1}"
    async with service(answering("x*2 + 1", "2x + 1", "x", "y")) as (url, _):
        world = load(tmp_path, url=url).make()
        await world.reset(0)
        with StoppedWorker() as worker:
            step = asyncio.create_task(world.step(Action(answer=proposal)))
            await worker.reached(step)
            worker.go_on()
            assert (await step).reward == pytest.approx(0.5 - 1 / 8)


async def test_a_cancelled_caller_waits_for_one_comparison_and_begins_no_other() -> None:
    answers = [f"x + y + {n}" for n in range(8)]
    with StoppedWorker() as worker:
        evaluated, compared = _values.cache_info().misses, _measured.cache_info().misses
        task = asyncio.create_task(
            compare_in_thread(lambda: agreement(answers, equal_answers("math", "cancelled?")))
        )
        await worker.reached(task)
        task.cancel()
        await asyncio.sleep(0)  # only now the thread is told to stop
        worker.go_on()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert _values.cache_info().misses == evaluated + 1
        assert _measured.cache_info().misses == compared
    found = await compare_in_thread(
        lambda: agreement(answers[:2], equal_answers("math", "cancelled?"))
    )
    assert len(found.classes) == 2
