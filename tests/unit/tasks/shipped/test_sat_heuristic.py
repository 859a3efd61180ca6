"""The search for a satisfying assignment, its formulas, and how a heuristic is graded."""

from __future__ import annotations

import itertools
import random
import re
from pathlib import Path

import pytest

from air import paths, tasks
from tests.unit.tasks.shipped.programs import grade, message, module, run, workspace

pytestmark = pytest.mark.slow

TASK = tasks.load("satHeuristic")
FOLDER = paths.shipped("tasks") / "satHeuristic"
SEARCH = module(FOLDER / "starter" / "search.py")
FORMULAS = module(FOLDER / "starter" / "formulas.py")
LOWEST = "def choose(rows):\n    return rows[0][0]\n"


def heuristic(place: Path, source: str) -> Path:
    (place / "heuristic.py").write_text(source)
    return place


def lowest(rows: list[list[int]]) -> int:
    return rows[0][0]


def anything(rows: list[list[int]]) -> int:
    return random.Random(str(rows)).choice(rows)[0] * (-1) ** len(rows)


def in_short_clauses(rows: list[list[int]]) -> int:
    return max(rows, key=lambda row: (row[1] + row[2], row[3] + row[4]))[0]


def satisfiable(clauses: list[list[int]]) -> bool:
    """By trying every assignment."""
    variables = sorted({abs(literal) for clause in clauses for literal in clause})
    for values in itertools.product((False, True), repeat=len(variables)):
        value = dict(zip(variables, values, strict=True))
        if all(any(value[abs(x)] == (x > 0) for x in clause) for clause in clauses):
            return True
    return False


def test_the_search_agrees_with_trying_everything() -> None:
    rng = random.Random(0)
    answers = set()
    for _ in range(60):
        clauses = FORMULAS.uniform(rng, variables=8, ratio=rng.choice((3, 5, 6, 8)))
        clauses += [[rng.randint(1, 8)] for _ in range(rng.randint(0, 2))]
        found = SEARCH.Search(clauses).run(anything, 10**6)
        assert found == satisfiable(clauses)
        answers.add(found)
    assert answers == {True, False}


def test_decisions_and_rows_worked_out_by_hand() -> None:
    """1 is decided, 2 and 3 follow and contradict; so -1. 2 is decided, -3 follows; 4 is decided."""
    seen = []

    def choose(rows: list[list[int]]) -> int:
        seen.append([list(row) for row in rows])
        return lowest(rows)

    search = SEARCH.Search([[-1, 2], [-1, 3], [-2, -3], [4, 5, 1]])
    assert search.run(choose, 10) is True
    assert search.decisions == 3
    assert seen[0] == [
        [1, 0, 2, 1, 0, 0],
        [2, 1, 1, 0, 0, 0],
        [3, 1, 1, 0, 0, 0],
        [4, 0, 0, 1, 0, 0],
        [5, 0, 0, 1, 0, 0],
    ]
    # The clause -2 or -3 (or one of the others) turned false once; variable 1 is set and gone.
    assert [row[:5] for row in seen[1]] == [
        [2, 0, 1, 0, 0],
        [3, 0, 1, 0, 0],
        [4, 1, 0, 0, 0],
        [5, 1, 0, 0, 0],
    ]
    assert sum(row[5] for row in seen[1]) >= 1
    assert [row[0] for row in seen[2]] == [4, 5]


def test_a_search_ends_at_its_limit() -> None:
    search = SEARCH.Search(FORMULAS.uniform(random.Random(0)))
    assert search.run(lowest, 5) is None
    assert search.decisions == 5


def test_formulas_come_from_the_seed_and_some_have_no_solution() -> None:
    formulas = FORMULAS.draw(1)
    assert formulas == FORMULAS.draw(1) != FORMULAS.draw(2)
    assert len(formulas) == 24
    found = []
    for clauses in formulas:
        found.append(SEARCH.Search(clauses).run(in_short_clauses, 1000))
    assert all(found[2::3])  # those around a hidden solution
    assert {*found[0::3]} == {*found[1::3]} == {True, False}


def test_equal_files_score_equally(tmp_path: Path) -> None:
    source = "import random\n\n\ndef choose(rows):\n    return random.choice(rows)[0]\n"
    place = heuristic(tmp_path, source)
    said = grade(TASK, place)
    assert said == grade(TASK, place)
    assert 0 < said["metrics"]["decisions"] <= 200
    assert 0 <= said["metrics"]["finished"] <= 1


def test_changing_the_rows_changes_nothing(tmp_path: Path) -> None:
    source = "def choose(rows):\n    v = rows[0][0]\n    rows.clear()\n    return v\n"
    honest = grade(TASK, heuristic(tmp_path, LOWEST))
    assert honest == grade(TASK, heuristic(tmp_path, source))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("0", "returned an int, expected a free variable"),
        ("10**30", "returned an int, expected"),
        ("True", "returned a bool"),
        ("1.0 * rows[0][0]", "returned a float"),
        ("[rows[0][0]]", "returned a list"),
        ("float('inf')", "returned Infinity"),
        ("str(rows[0][0])", "returned a str"),
        ("None", "returned None"),
        ("kept.setdefault('first', rows[0][0])", "expected a free variable"),
    ],
)
def test_an_answer_that_is_no_free_literal_is_told(tmp_path: Path, answer: str, said: str) -> None:
    """Also a variable that was free once: no decision can be asked for twice."""
    source = f"kept = {{}}\n\n\ndef choose(rows):\n    return {answer}\n"
    text = message(TASK, heuristic(tmp_path, source))
    assert re.search(said, text), text


def test_practice_measures_what_solve_wrote(tmp_path: Path) -> None:
    place = workspace(TASK, tmp_path)
    (place / "config").write_text("method=4 level=4")
    assert run(place, "solve.py").returncode == 0
    result = run(place, "practice.py", "3")
    assert result.returncode == 0, result.stderr
    assert 10 < float(result.stdout.rpartition("all: ")[2]) < 80
