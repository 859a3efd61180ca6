"""Splits the data of MLGym's house prices task, because a checkout of MLGym can lack the split data.

A fifth of the rows becomes the test set, and an eighth of the remaining rows the validation set. The rows are
drawn as scikit-learn's `train_test_split` draws them: from the beginning of numpy's
`RandomState(42).permutation`. Cells that pandas 2 reads as missing are written as empty cells, so that every
version of pandas reads them as missing.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

STATE = 42
"""The random state (seed) with which MLGym splits its data."""
_ORIGINAL = "_helpers/train.csv"
_LABEL, _ID = "SalePrice", "Id"
_MISSING = frozenset(
    (
        "",
        "#N/A",
        "#N/A N/A",
        "#NA",
        "-1.#IND",
        "-1.#QNAN",
        "-NaN",
        "-nan",
        "1.#IND",
        "1.#QNAN",
        "<NA>",
        "N/A",
        "NA",
        "NULL",
        "NaN",
        "None",
        "n/a",
        "nan",
        "null",
    )
)
ItemT = TypeVar("ItemT")
State = int | tuple[int, ...]


def original(data_path: Path) -> Path:
    """Returns the path of the CSV file with all rows, from which the split data in `data_path` is made. The
    file might not exist."""
    return data_path.parent / _ORIGINAL


def house_prices(table: Path, dest: Path, state: State = STATE) -> None:
    """Splits the rows of the CSV file `table`, and writes them into four files in the folder `dest`.

    The files are `train.csv`, `validation.csv`, `test.csv` (without prices) and `answer.csv` (the prices of
    the test rows). `state` is numpy's random state (seed) with which the rows are drawn: one number below 2³²
    or a sequence of such numbers.
    """
    with table.open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    rows = [["" if cell in _MISSING else cell for cell in row] for row in rows]
    label, key = header.index(_LABEL), header.index(_ID)
    rest, test = _cut(rows, 0.2, state)
    train, validation = _cut(rest, 0.125, state)
    for name, part in (("train", train), ("validation", validation)):
        reordered = [[*_without(row, label), row[label]] for row in part]
        _write(dest / f"{name}.csv", [*_without(header, label), _LABEL], reordered)
    _write(dest / "test.csv", _without(header, label), [_without(row, label) for row in test])
    _write(dest / "answer.csv", [_ID, _LABEL], [[row[key], row[label]] for row in test])


def _cut(items: Sequence[ItemT], share: float, state: State) -> tuple[list[ItemT], list[ItemT]]:
    """Draws a part of `items` at random, as scikit-learn's `train_test_split` does. `share` is the size of
    this part, from 0 to 1. Returns two lists: the items that were not drawn, and the drawn items."""
    import numpy

    order = numpy.random.RandomState(state).permutation(len(items))
    count = math.ceil(len(items) * share)
    return [items[i] for i in order[count:]], [items[i] for i in order[:count]]


def _without(row: list[str], column: int) -> list[str]:
    return row[:column] + row[column + 1 :]


def _write(path: Path, header: list[str], rows: list[list[str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])
