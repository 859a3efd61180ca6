"""What a run says while it trains."""

from __future__ import annotations

import io
import logging

import pytest
from rich.console import Console

from air.train.loop.failures import Failures
from air.train.loop.progress import Progress, last_table

ROW = {
    **{"step": 8, "reward": 0.5, "valid": 1.0, "well_formed": 1.0, "zero_spread_groups": 0},
    **{"groups": 2, "failed_episodes": 0, "tokens_per_second": 9.0, "time/step": 1.0},
}


def test_a_resumed_run_estimates_by_its_own_steps() -> None:
    progress = Progress(10, console=Console(file=io.StringIO()))
    progress.begin(7)
    assert progress.eta == "–"
    progress._began -= 50
    progress.step(ROW)
    minutes, seconds = map(int, progress.eta.split(":"))
    assert 100 <= 60 * minutes + seconds < 160  # one step took 50 s, and two remain


@pytest.mark.parametrize("terminal", [True, False])
def test_every_line_is_logged_as_it_is(terminal: bool, caplog: pytest.LogCaptureFixture) -> None:
    console = Console(file=io.StringIO(), force_terminal=terminal)
    with caplog.at_level(logging.INFO):
        progress = Progress(10, console=console)
        progress.say("a [/failure] with brackets")
        progress.step(ROW)
    assert caplog.messages[0] == "a [/failure] with brackets"
    assert caplog.messages[1].startswith("step 8  reward +0.500")


def test_the_commonest_failure_is_named() -> None:
    failures = Failures()
    assert failures.count(1, 4, []) == ""
    assert not failures.everything
    line = failures.count(2, 4, ["a\nmore", "b", "a.", "a."])
    assert line == "step 2: 4 of 4 episodes failed; the commonest failure (3 of 4): a"
    assert failures.steps == 1
    assert not failures.everything
    failures.count(3, 2, ["b"])
    assert failures.steps == 0
    assert failures.commonest() == "the commonest failure (3 of 5): a"
    lost = Failures()
    lost.count(1, 2, ["x", "x"])
    assert lost.everything


def test_the_title_of_a_narrow_table_stays_one_line() -> None:
    scores = dict.fromkeys(("baseline", "first_mean", "first_best", "last_mean", "last_best"), 0.5)
    console = Console(file=io.StringIO(), width=80)
    last_table(console, [{"task": "t", **scores, "first_reward": 0.0, "last_reward": 1.0}])
    assert isinstance(console.file, io.StringIO)
    title, head, _ = console.file.getvalue().splitlines()
    assert title.rstrip() == (
        "scores on the validation split, at the last validate of each episode"
    )
    assert head.startswith("task")
