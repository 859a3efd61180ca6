"""The split of house prices against scikit-learn's, which MLGym's own script uses."""

from __future__ import annotations

from pathlib import Path

from sklearn.model_selection import train_test_split

from air.tasks.sources.mlgym.house_prices_split import STATE, house_prices, original
from tests.unit.tasks.mlgym.tree import houses, rows


def test_the_rows_are_those_that_scikit_learn_draws(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text(houses())
    for state in (STATE, 7):
        house_prices(table, tmp_path, state)
        ids = [row["Id"] for row in rows(table)]
        rest, test = train_test_split(ids, test_size=0.2, random_state=state)
        train, validation = train_test_split(rest, test_size=0.125, random_state=state)
        expected = {"train": train, "validation": validation, "test": test, "answer": test}
        found = {name: [row["Id"] for row in rows(tmp_path / f"{name}.csv")] for name in expected}
        assert found == expected


def test_prices_are_in_the_answers_and_holes_are_empty(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text(houses())
    house_prices(table, tmp_path)
    prices = {row["Id"]: row["SalePrice"] for row in rows(table)}
    for name in ("train", "validation", "answer"):
        part = rows(tmp_path / f"{name}.csv")
        assert all(row["SalePrice"] == prices[row["Id"]] for row in part)
        assert list(part[0])[-1] == "SalePrice"
    assert list(rows(tmp_path / "test.csv")[0]) == ["Id", "Walls", "Area"]
    assert {row["Walls"] for row in rows(tmp_path / "train.csv")} == {"", "brick"}


def test_the_table_lies_beside_the_absent_folder(tmp_path: Path) -> None:
    assert original(tmp_path / "data") == tmp_path / "_helpers" / "train.csv"
