"""The steps of a co-evolution between its trainings."""

from __future__ import annotations

import asyncio
import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from air.train.coevolve.coevolve_run import CoevolveRun
from air.train.coevolve.files import ANSWERED, ROWS
from air.train.coevolve.plan import Plan, plan
from tests.unit.train.coevolve.test_plan import config
from tests.unit.worlds.proposals.stopped_worker import StoppedWorker


def answered(run_plan: Plan, *answers: str) -> Path:
    """Writes the answers to one question in round 0. Returns the path of the round's rows."""
    folder = run_plan.round_folder(0)
    folder.mkdir(parents=True, exist_ok=True)
    line = {"question": "z + z?", "proposed": "2z", "answers": answers, "tool_calls": 0.0}
    (folder / ANSWERED).write_text(json.dumps(line) + "\n")
    return folder / ROWS


async def test_ctrl_c_ends_the_filter_while_answers_are_compared(tmp_path: Path) -> None:
    """Comparisons of hostile answers take minutes. Ctrl-C cancels the task, which the event loop does."""
    planned = plan(config(tmp_path))
    rows = answered(planned, "2z", "z*2", "z", "z+1")
    said: list[str] = []
    run = CoevolveRun(planned, said.append, lambda _: nullcontext(lambda: None))
    with StoppedWorker() as worker:
        filtering = asyncio.create_task(run._filter(0))
        await worker.reached(filtering)
        filtering.cancel()
        worker.go_on()
        with pytest.raises(asyncio.CancelledError):
            await filtering
    assert said == []
    assert not rows.exists()
    assert await run._filter(0) == 1
    assert json.loads(rows.read_text())["answer"] == "2z"


async def test_a_round_keeps_the_rows_with_which_its_training_began(tmp_path: Path) -> None:
    """Even if another selection would be made now, for example because a comparison reaches a limit."""
    planned = plan(config(tmp_path))
    run = CoevolveRun(planned, lambda _: None, lambda _: nullcontext(lambda: None))
    rows = answered(planned, "1", "1", "2", "3")
    assert await run._filter(0) == 1
    before = rows.read_bytes()
    answered(planned, "1", "1", "1", "1")
    assert await run._filter(0) == 1
    assert rows.read_bytes() == before
    rows.unlink()
    assert await run._filter(0) == await run._filter(0) == 0
