"""Reads a table of predictions (CSV, two columns: `id` and the answer), and says what is wrong with it."""

import csv
import math
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TypeVar

from grading import BadArtefact, read_bytes

KEY = "id"
MOST_BYTES = 1_000_000
"""Of a table; those that ship need a quarter of it."""
T = TypeVar("T")
Parse = Callable[[str], T]
"""Turns a cell into a value; raises ValueError, which says what was expected, if it is none."""


def label(allowed: Collection[str]) -> Parse[str]:
    """Cells are one of the allowed words."""
    expected = " or ".join(sorted(allowed)) if len(allowed) < 3 else "one of the classes"

    def parse(cell: str) -> str:
        if cell not in allowed:
            raise ValueError(expected)
        return cell

    return parse


def number(low: float, high: float) -> Parse[float]:
    """Cells are numbers from `low` to `high`."""

    def parse(cell: str) -> float:
        try:
            value = float(cell)
        except ValueError:
            value = math.nan
        if not low <= value <= high:  # NaN is in no range
            raise ValueError(f"a number from {low:g} to {high:g}")
        return value

    return parse


def read_answers(path: Path, parse: Parse[T]) -> dict[str, T]:
    """The true answers by id, from a file of the grader."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.reader(file)
        next(rows)
        return {name: parse(cell) for name, cell in rows}


def read_pairs(
    submission: Path, answers: Path, column: str, parse: Parse[T]
) -> dict[str, tuple[T, T]]:
    """True and submitted answer by id, in the order of the answers; ids nobody asked for are ignored.

    Raises:
        BadArtefact: not UTF-8 text, wrong columns, an id twice, ids of the answers that are missing, or a
            cell that `parse` refuses.
    """
    expected = read_answers(answers, parse)
    submitted = read_predictions(submission, column, parse)
    missing = sum(1 for row in expected if row not in submitted)
    if missing:
        raise BadArtefact(
            f"{submission.name} lacks {missing} of the {len(expected)} {answers.stem} ids"
        )
    return {row: (answer, submitted[row]) for row, answer in expected.items()}


def read_predictions(path: Path, column: str, parse: Parse[T]) -> dict[str, T]:
    """The submitted values by id.

    Raises:
        BadArtefact: see `read_pairs`.
    """
    name = path.name
    rows = _rows(path)
    if [cell.strip() for cell in next(rows, [])] != [KEY, column]:
        raise BadArtefact(f"{name} must begin with the line {KEY},{column}")
    values: dict[str, T] = {}
    for line, row in enumerate(rows, 2):
        if not row:
            continue
        if len(row) != 2:
            raise BadArtefact(f"{name} line {line}: {len(row)} cells, expected 2")
        key, cell = row[0].strip(), row[1].strip()
        if key in values:
            raise BadArtefact(f"{name} line {line}: id {key[:20]!r} is there twice")
        try:
            values[key] = parse(cell)
        except ValueError as error:
            raise BadArtefact(f"{name} line {line}: {cell[:20]!r}, expected {error}") from None
    return values


def accuracy(pairs: dict[str, tuple[str, str]]) -> float:
    """The share of answers that were submitted correctly."""
    return sum(true == given for true, given in pairs.values()) / len(pairs)


def _rows(path: Path) -> Iterator[list[str]]:
    """The lines of a CSV file, one at a time: millions of empty ones must not fill the memory."""
    try:
        text = read_bytes(path, MOST_BYTES).decode("utf-8-sig")
        yield from csv.reader(text.splitlines())
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadArtefact(f"{path.name} is not readable as CSV: {error}") from None
