"""A run that air 0.1.0 recorded on 2026-12-01, in version 2 of the format, replays as it was recorded.

`tests/data/recorded_run` is never recorded anew: if a test here fails, air can no longer replay its users'
runs. The recording has two episodes. In one, a scripted agent writes strategies for the prisoner's dilemma,
in a process box: a malformed reply, two validates and a submission, graded by `delta = "best"` with the test
score, on the public split. In the other, it solves a room of Sokoban.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from air.cli.main import main
from air.replay.options import ReplayOptions
from air.replay.regrade import rescore
from air.replay.replayer import Replayer
from air.trajectories import load, trajectory_files

pytestmark = pytest.mark.slow

RECORDED = Path(__file__).parents[2] / "data" / "recorded_run"
# The files of tasks may change, but not what they answer to these actions.
OPTIONS = ReplayOptions(changed_task=True)


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RECORDED, tmp_path / "run"))


def test_every_turn_and_score_of_an_old_run_is_equal(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["replay", str(run_folder), "--changed-task", "--json"])
    rows = {row["task"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert [row["differences"] for row in rows.values()] == [[], []]
    assert code == 0
    assert {task: row["steps"] for task, row in rows.items()} == {
        "prisonersDilemma": 4,
        "game:sokoban4x5-level1": 3,
    }


async def test_the_artefacts_of_an_old_run_earn_the_recorded_reward(run_folder: Path) -> None:
    (trajectory,) = (
        one
        for one in map(load, trajectory_files(run_folder))
        if one.start and one.start.task == "prisonersDilemma"
    )
    assert trajectory.end is not None
    async with Replayer(OPTIONS) as replayer:
        done = await rescore(trajectory, replayer.grader_of(trajectory), {}, OPTIONS)
    assert done.differences == []
    assert done.equal_scores == done.scores == 4
    assert done.reward == trajectory.end.reward == pytest.approx(1.11860, abs=1e-5)
    assert done.terms == trajectory.end.terms
