"""Reads a table of numbers that somebody else wrote, and says what is wrong with it."""

import csv
import math
from pathlib import Path


class BadTable(Exception):
    """The submitted table cannot be graded; the text is shown to the agent."""


def read_answers(path: Path) -> dict[str, float]:
    """The true numbers by id."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.reader(file)
        next(rows)
        return {name: float(number) for name, number in rows}


def read_predictions(
    path: Path, key: str, value: str, answers: dict[str, float], low: float, high: float
) -> list[tuple[float, float]]:
    """Pairs of answer and submitted number, in the order of the answers; other ids are let through.

    Raises:
        BadTable: not UTF-8 text, wrong columns, an id twice, ids of the answers that are missing, or a
            value that is no number from `low` to `high`.
    """
    name = path.name
    try:
        text = path.read_text(encoding="utf-8-sig")
        rows = list(csv.reader(text.splitlines()))
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadTable(f"{name} is not readable as CSV: {error}") from None
    if not rows or [cell.strip() for cell in rows[0]] != [key, value]:
        raise BadTable(f"{name} must begin with the line {key},{value}")
    found: dict[str, float] = {}
    for number, row in enumerate(rows[1:], 2):
        if not row:
            continue
        if len(row) != 2:
            raise BadTable(f"{name} line {number}: {len(row)} cells, expected 2")
        name_of_row, cell = row[0].strip(), row[1].strip()
        if name_of_row in found:
            raise BadTable(f"{name} line {number}: id {name_of_row[:20]!r} is there twice")
        found[name_of_row] = _number(cell, low, high, f"{name} line {number}")
    missing = sum(1 for row in answers if row not in found)
    if missing:
        raise BadTable(f"{name} lacks {missing} of the {len(answers)} ids to be graded")
    return [(answer, found[row]) for row, answer in answers.items()]


def _number(cell: str, low: float, high: float, where: str) -> float:
    try:
        number = float(cell)
    except ValueError:
        number = math.nan
    if not low <= number <= high:  # NaN is in no range
        raise BadTable(f"{where}: {cell[:20]!r}, expected a number from {low:g} to {high:g}")
    return number
