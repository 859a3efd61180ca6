"""The formulas of the 3-SAT task: each says truly whether it can be satisfied."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path

from air.tasks.sources.mlgym.sat import CLAUSES, VARIABLES, formulas


def possible(clauses: list[list[int]]) -> bool:
    """Tries every assignment."""
    return any(
        all(any((literal > 0) == values[abs(literal) - 1] for literal in c) for c in clauses)
        for values in itertools.product((False, True), repeat=VARIABLES)
    )


def read(
    folder: Path, seed: int, count: int
) -> list[tuple[int, int, int, list[list[int]], bool, None]]:
    formulas(folder, seed, count)
    rows: list[tuple[int, int, int, list[list[int]], bool, None]]
    rows = pickle.loads((folder / "dataset.pkl").read_bytes())
    return rows


def test_each_formula_says_whether_it_can_be_satisfied(tmp_path: Path) -> None:
    rows = read(tmp_path / "data", 7, 60)
    assert len(rows) == 63  # the evaluation leaves out three
    for index, (number, variables, count, clauses, satisfiable, _) in enumerate(rows):
        assert (number, variables, count) == (index, VARIABLES, CLAUSES)
        assert all(len({abs(literal) for literal in clause}) == 3 for clause in clauses)
        assert satisfiable is possible(clauses)
    assert {row[4] for row in rows} == {True, False}


def test_the_seed_decides_them(tmp_path: Path) -> None:
    assert read(tmp_path, 1912, 5) == read(tmp_path, 1912, 5)
    assert read(tmp_path, 1912, 5) != read(tmp_path, 2**63 - 1, 5)
