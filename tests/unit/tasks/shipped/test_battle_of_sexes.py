"""The battle of the sexes: its payoffs, its league, and what is shared with the prisoner's dilemma."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from air import paths, tasks
from air.tasks.data import prepare
from tests.unit.tasks.shipped.programs import grade, message, module, run, workspace

pytestmark = pytest.mark.slow

TASK = tasks.load("battleOfSexes")
GRADER = paths.shipped("tasks") / "battleOfSexes" / "grader"
ALWAYS = "def move(mine, theirs):\n    return {}\n"


def strategy(place: Path, source: str) -> Path:
    (place / "strategy.py").write_text(source)
    return place


def test_opponents_are_drawn_from_the_seed_and_play_only_0_and_1() -> None:
    opponents = module(GRADER / "opponents.py")

    def first_moves(seed: int) -> list[list[int]]:
        played = []
        for opponent in opponents.league(seed):
            own: list[int] = []
            for turn in range(40):
                own.append(opponent(own, [turn // 3 % 2 for turn in range(turn)]))
            played.append(own)
        return played

    assert first_moves(1) == first_moves(1)
    assert first_moves(1) != first_moves(2)
    assert len(first_moves(1)) == len(opponents.KINDS) == 11
    assert {move for moves in first_moves(1) for move in moves} == {0, 1}


@pytest.mark.parametrize("ours", [0, 1])
def test_the_payoff_is_2_for_meeting_at_ours_and_1_at_theirs(ours: int, tmp_path: Path) -> None:
    seed = json.loads((prepare(TASK).grader / "data" / "seeds.json").read_text())["val"]
    met = []
    for opponent in module(GRADER / "opponents.py").league(seed):
        own: list[int] = []
        for turn in range(100):
            own.append(opponent(own, [ours] * turn))
        met.append(own.count(ours) / 100 * (2 - ours))
    said = grade(TASK, strategy(tmp_path, ALWAYS.format(ours)))["metrics"]
    assert said["payoff"] == pytest.approx(sum(met) / 11)
    assert said["worst_match"] == pytest.approx(min(met))


def test_equal_files_score_equally_and_the_seed_changes_the_luck(tmp_path: Path) -> None:
    source = "import random\n\n\ndef move(mine, theirs):\n    return random.randrange(2)\n"
    place = strategy(tmp_path, source)
    assert grade(TASK, place) == grade(TASK, place)
    assert grade(TASK, place) != grade(TASK, place, seed=1)
    assert grade(TASK, place) != grade(TASK, place, split="test")


def test_nothing_is_kept_between_matches(tmp_path: Path) -> None:
    source = (
        "seen = []\n\n\ndef move(mine, theirs):\n    seen.append(1)\n    assert len(seen) <= 100\n"
    )
    assert "metrics" in grade(TASK, strategy(tmp_path, source + "    return 0\n"))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def move(mine, theirs):\n    return 2\n", "returned an int, expected 0 or 1"),
        ("def move(mine, theirs):\n    return float('nan')\n", "returned NaN"),
        ("def move(mine, theirs):\n    return [][0]\n", "failed: IndexError$"),
        ("raise SystemExit\n", "SystemExit"),
        ("#" * 100_001, "larger than 100 kB"),
    ],
)
def test_a_strategy_at_fault_is_told_so(tmp_path: Path, source: str, said: str) -> None:
    text = message(TASK, strategy(tmp_path, source))
    assert re.search(said, text), text


def test_practice_plays_what_solve_wrote(tmp_path: Path) -> None:
    place = workspace(TASK, tmp_path)
    (place / "config").write_text("method=1 level=4")
    assert run(place, "solve.py").returncode == 0
    result = run(place, "practice.py")
    assert "does what we did: 1.98" in result.stdout, result
    assert "always insists: 0.00" in result.stdout
