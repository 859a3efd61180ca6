"""The breaker: failures in a row, counted by several processes, end a run."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from air.env import failure_breaker
from air.errors import ConfigError, InfrastructureError
from tests.processes import running

FAIL = """
import sys
from air.env.failure_breaker import Breaker
for _ in range(int(sys.argv[1])):
    Breaker.of_run(100).failed("GradingError: exit 7\\nand more", "t")
"""


def test_failures_in_a_row_open_it_and_a_good_episode_begins_anew() -> None:
    counted = failure_breaker.Breaker(3, None)
    for error in ("a", "b", "", "c", "d"):
        counted.failed(error, "t") if error else counted.ended_well("t")
        counted.check()
    counted.failed("TaskError: the last straw", "t")
    with pytest.raises(InfrastructureError, match=r"^3 episodes in a row .* the last straw$"):
        counted.check()
    counted.ended_well("t")
    with pytest.raises(InfrastructureError, match="in a row"):
        counted.check()


@pytest.mark.parametrize("limit", [0, 3])
def test_it_can_be_opened_at_once_and_keeps_its_first_reason(limit: int, tmp_path: Path) -> None:
    for file in (None, tmp_path / "breaker.json"):
        counted = failure_breaker.Breaker(limit, file)
        counted.open("a:b: the term failed")
        counted.open("a:b: it failed again")
        for _ in range(5):
            counted.failed("x", "t")
        with pytest.raises(InfrastructureError, match=r"^a:b: the term failed$"):
            counted.check()
    assert failure_breaker.opened(tmp_path / "breaker.json") == "a:b: the term failed"


def test_a_limit_of_0_never_opens_it() -> None:
    counted = failure_breaker.Breaker(0, None)
    for _ in range(100):
        counted.failed("x", "t")
    counted.check()


@pytest.mark.parametrize(
    ("outcomes", "warns"),
    [
        ("." * 100, 0),
        (".x" * 50, 2),  # from none to some to half of them; then it is no rise any more
        ("." * 64 + "xxx" + "." * 40, 0),
        ("." * 64 + "xxxx", 1),
        ("." * 64 + "xxxx" + "." * 64 + "x" * 4, 2),
        (("x" + "." * 10) * 9 + "xx..xx.xx.xx.xx.xx.xx", 1),
    ],
)
def test_a_task_whose_failures_become_more_is_named_once(
    outcomes: str, warns: int, caplog: pytest.LogCaptureFixture
) -> None:
    counted = failure_breaker.Breaker(0, None)
    for outcome in outcomes:
        counted.ended_well("other")
        counted.failed("e", "odd") if outcome == "x" else counted.ended_well("odd")
    said = [record.message for record in caplog.records]
    assert len(said) == warns, said
    assert all("task odd:" in line for line in said)


async def test_processes_count_together(tmp_path: Path) -> None:
    file = tmp_path / "run" / "breaker.json"
    env = {**os.environ, **failure_breaker.fresh(file)}
    async with AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(running(sys.executable, "-c", FAIL, str(n), env=env))
            for n in (30, 30, 39)
        ]
        ended = asyncio.gather(*(worker.wait() for worker in workers))
        assert await asyncio.wait_for(ended, 240) == [0, 0, 0]
    assert failure_breaker.opened(file) == ""
    assert json.loads(file.read_text())["failures"] == 99
    last = failure_breaker.Breaker(100, file)
    last.failed("GradingError: exit 7\nand more", "t")
    assert failure_breaker.opened(file).endswith("the last one: GradingError: exit 7 and more")
    failure_breaker.fresh(file)
    assert failure_breaker.opened(file) == ""


def test_a_file_that_is_no_breakers_is_named(tmp_path: Path) -> None:
    file = tmp_path / "breaker.json"
    file.write_text("hello")
    with pytest.raises(ConfigError, match=r"AIR_BREAKER_FILE.*breaker\.json"):
        failure_breaker.opened(file)
    with pytest.raises(ConfigError, match="AIR_BREAKER_FILE: cannot use"):
        failure_breaker.Breaker(1, tmp_path).failed("x", "t")


def test_a_task_that_keeps_failing_at_actions_stops_the_run_and_is_named(tmp_path: Path) -> None:
    """1 of 5 episodes adds 1 - 4/10 to the count: 15 such rounds are 9.0, and two more failures make 11."""
    for file in (None, tmp_path / "breaker.json"):
        counted = failure_breaker.Breaker(10, file)
        for _ in range(15):
            counted.failed("Unanswered: lost", "bad", "kill\n\x1b[2Jit")
            for _ in range(4):
                counted.ended_well("bad")
                counted.ended_well("good")
        counted.check()
        for _ in range(2):
            counted.failed("Unanswered: lost", "bad", "kill\n\x1b[2Jit")
        with pytest.raises(InfrastructureError) as caught:
            counted.check()
        text = str(caught.value)
        assert text.startswith("too many episodes of the task bad failed while an action")
        assert text.endswith(r"the last one: Unanswered: lost, at the action 'kill\n\x1b[2Jit'")


def test_failures_that_are_rare_or_outside_of_actions_stop_no_run() -> None:
    counted = failure_breaker.Breaker(10, None)
    for round_ in range(200):
        counted.failed("InferenceError: away", "t")  # every other episode: the model server
        counted.ended_well("t")
        if round_ % 10 == 0:
            counted.failed("Unanswered: lost", "u", "a")
        counted.ended_well("u")
    for _ in range(9):  # one outage, after which all is well
        counted.failed("Unanswered: lost", "t", "a")
    for _ in range(100):
        counted.ended_well("t")
        counted.check()


def test_a_task_that_fails_in_every_episode_stops_the_run_while_others_are_well() -> None:
    counted = failure_breaker.Breaker(10, None)
    for _ in range(9):
        counted.failed("InfrastructureError: no connection", "gone")
        counted.ended_well("well")
    counted.check()
    counted.failed("InfrastructureError: no connection", "gone")
    with pytest.raises(InfrastructureError, match=r"^10 episodes of the task gone in a row failed"):
        counted.check()


def test_the_warning_names_the_action_at_which_the_last_episode_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counted = failure_breaker.Breaker(0, None)
    for _ in range(failure_breaker.FEWEST):
        counted.failed("Unanswered: lost", "odd", "kill")
    (record,) = caplog.records
    assert record.message.endswith("(the last one failed at the action 'kill')")
