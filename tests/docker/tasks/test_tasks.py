"""Every shipped task played in real containers, as `air tasks check` does it."""

from __future__ import annotations

import os
import re

import pytest

from air import tasks
from air.cli.main import main
from air.sandbox.pool.box_pool import Pool
from air.tasks.check import play_solver, read_solvers
from air.tasks.grading import Grader
from air.tasks.missing_resources import missing
from tests import once

pytestmark = pytest.mark.docker


@pytest.fixture(autouse=True)
def _fresh_grades(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIR_CACHE", str(once.cache(tmp_path_factory)))


PLAYABLE = [name for name in tasks.available() if not missing(tasks.load(name))]
STARTER_MEASURED = frozenset(
    {
        "amesHousing",
        "cartPole",
        "digits",
        "foodReviews",
        "forecasting",
        "gridMaze",
        "languageModel",
        "prisonersDilemma",
        "recommendation",
        "titanic",
    }
)
"""By `test_the_starter_scores_the_declared_baseline` of tests/unit/tasks/shipped, in process boxes."""
FULL = os.environ.get("AIR_FULL") == "1"
SHORT = "titanic"
ELSEWHERE = (SHORT, "blotto")
"""Measured by `test_every_recorded_score_is_checked_by_the_command`, and by
`test_baseline_and_best_score_as_in_air` of tests/docker/harbor/test_export.py."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.full] if n in ELSEWHERE else []) for n in PLAYABLE],
)
async def test_recorded_scores_are_measured_again(name: str) -> None:
    """The last one's, and the baseline's unless it is measured elsewhere; each by `air tasks check` below."""
    task = tasks.load(name)
    first, *_, last = read_solvers(task)
    solvers = [last] if name in STARTER_MEASURED and not FULL else [first, last]
    async with Pool(1) as boxes, Pool(1, nested=True) as graders:
        grader = Grader(graders, "docker")
        for solver in solvers:
            async with boxes.lease(task.box_spec("docker")) as box:
                result = await play_solver(task, solver, box, grader)
            assert result.problem == "", solver.name


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n == SHORT else [pytest.mark.full]) for n in PLAYABLE],
)
def test_every_recorded_score_is_checked_by_the_command(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tasks", "check", name]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    solvers = read_solvers(tasks.load(name))
    assert len(solvers) >= 2
    assert len(re.findall(rf"^{name} .* ok$", printed.out, re.MULTILINE)) == len(solvers)
