"""Colonel Blotto: its generals, its score, and allocations that are refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from air import paths, tasks
from air.tasks.data import prepare
from tests.unit.tasks.shipped.programs import grade, message, module, run, workspace

pytestmark = pytest.mark.slow

TASK = tasks.load("blotto")
GENERALS = module(paths.shipped("tasks") / "blotto" / "grader" / "opponents.py")


def strategy(place: Path, answer: str) -> Path:
    (place / "strategy.py").write_text(f"def allocate(mine, theirs):\n    return {answer}\n")
    return place


def test_generals_are_drawn_from_the_seed_and_send_all_their_soldiers() -> None:
    def battles(seed: int) -> list[list[int]]:
        played = []
        for general in GENERALS.league(seed):
            own: list[list[int]] = []
            for turn in range(30):
                other = [[turn % 7 * 8, 60 - turn % 7 * 8, 0, 0, 0, 0] for turn in range(turn)]
                own.append(general(own, other))
            played += own
        return played

    sent = battles(1)
    assert sent == battles(1) != battles(2)
    assert len(sent) == 12 * 30
    assert all(len(fields) == 6 and sum(fields) == 60 and min(fields) >= 0 for fields in sent)


@pytest.mark.parametrize(
    ("weights", "shares"),
    [([1] * 6, [10] * 6), ([1, 0, 0, 0, 0, 0], [60, 0, 0, 0, 0, 0]), ([7, 7, 7, 7, 7, 4], None)],
)
def test_soldiers_are_shared_out_in_proportion(weights: list[int], shares: list[int]) -> None:
    """7/39 of 60 is 10.77 and 4/39 is 6.15: five remainders of .77 get the four that are left."""
    given = GENERALS.shared_out(weights)
    assert given == shares or sorted(given) == [6, 10, 11, 11, 11, 11]


def test_one_more_than_was_seen_on_the_cheapest_fields() -> None:
    assert GENERALS.beat([10] * 6) == [11, 11, 11, 11, 11, 5]
    assert GENERALS.beat([0, 0, 0, 20, 20, 20]) == [1, 1, 1, 21, 21, 15]
    assert GENERALS.beat([60, 0, 0, 0, 0, 0]) == [55, 1, 1, 1, 1, 1]


def test_the_margin_is_counted_field_by_field(tmp_path: Path) -> None:
    seed = json.loads((prepare(TASK).grader / "data" / "seeds.json").read_text())["val"]
    ours = [30, 30, 0, 0, 0, 0]
    margins = []
    for general in GENERALS.league(seed):
        own: list[list[int]] = []
        for turn in range(40):
            own.append(general(own, [ours] * turn))
        won = sum(a > b for reply in own for a, b in zip(ours, reply, strict=True))
        lost = sum(a < b for reply in own for a, b in zip(ours, reply, strict=True))
        margins.append((won - lost) / 240)
    said = grade(TASK, strategy(tmp_path, str(ours)))["metrics"]
    assert said["margin"] == pytest.approx(sum(margins) / 12)
    assert said["worst_match"] == pytest.approx(min(margins))


def test_equal_files_score_equally_and_the_seed_changes_the_luck(tmp_path: Path) -> None:
    chance = "__import__('random').sample([20, 18, 12, 9, 1, 0], 6)"
    place = strategy(tmp_path, chance)
    assert grade(TASK, place) == grade(TASK, place)
    assert grade(TASK, place) != grade(TASK, place, seed=1)
    assert grade(TASK, place) != grade(TASK, place, split="test")


def test_changing_the_histories_changes_nothing(tmp_path: Path) -> None:
    honest = grade(TASK, strategy(tmp_path, "[20, 20, 20, 0, 0, 0]"))
    tricky = "(mine.clear(), [row.clear() for row in theirs], [20, 20, 20, 0, 0, 0])[2]"
    assert grade(TASK, strategy(tmp_path, tricky)) == honest


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("[10] * 5", "expected a list of 6 counts"),
        ("[10] * 7", "expected a list of 6 counts"),
        ("'101010'", "expected a list of 6 counts"),
        ("None", "returned None"),
        ("[11] * 6", "more or fewer soldiers than 60"),
        ("[0] * 6", "more or fewer soldiers than 60"),
        ("[100, -40, 0, 0, 0, 0]", "not integers from 0 to 60"),
        ("[60, 60, -60, 0, 0, 0]", "not integers from 0 to 60"),
        ("[70, -10, 0, 0, 0, 0]", "not integers from 0 to 60"),
        ("[10.0] * 6", "not integers"),
        ("[True] + [59] + [0] * 4", "not integers"),
        ("[10**400, -10**400, 60, 0, 0, 0]", "not integers"),
        ("[float('inf')] * 6", "returned Infinity"),
        ("[float('nan')] * 6", "returned NaN"),
        ("{str(at): 10 for at in range(6)}", "expected a list of 6 counts"),
    ],
)
def test_what_is_no_allocation_is_refused(tmp_path: Path, answer: str, said: str) -> None:
    text = message(TASK, strategy(tmp_path, answer))
    assert re.search(said, text), text


def test_practice_plays_what_solve_wrote(tmp_path: Path) -> None:
    place = workspace(TASK, tmp_path)
    assert run(place, "solve.py").returncode == 0
    result = run(place, "practice.py")
    assert "even: 0.00" in result.stdout, result
    assert "does what we did: 0.00" in result.stdout
