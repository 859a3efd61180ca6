"""The steps of a co-evolution between its trainings."""

from __future__ import annotations

import asyncio
import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from air.train.coevolve.coevolve_run import CoevolveRun
from air.train.coevolve.files import ANSWERED, ROWS
from air.train.coevolve.plan import plan
from tests.unit.train.coevolve.test_plan import config
from tests.unit.worlds.proposals.stopped_worker import StoppedWorker


async def test_ctrl_c_ends_the_filter_while_answers_are_compared(tmp_path: Path) -> None:
    """Comparisons of hostile answers take minutes. Ctrl-C cancels the task, which the event loop does."""
    planned = plan(config(tmp_path))
    folder = planned.round_folder(0)
    folder.mkdir(parents=True)
    answers = ["2z", "z*2", "z", "z+1"]
    line = {"question": "z + z?", "proposed": "2z", "answers": answers, "tool_calls": 0.0}
    (folder / ANSWERED).write_text(json.dumps(line) + "\n")
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
    assert not (folder / ROWS).exists()
    assert await run._filter(0) == 1
    assert json.loads((folder / ROWS).read_text())["answer"] == "2z"
