"""Reads a two-column table of predictions that somebody else wrote, and says what is wrong with it."""

import csv
from pathlib import Path


class BadTable(Exception):
    """The submitted table cannot be graded; the text is shown to the agent."""


def read_answers(path: Path) -> dict[str, str]:
    """The true answers by id."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.reader(file)
        next(rows)
        return dict(rows)


def read_predictions(path: Path, key: str, value: str, allowed: set[str]) -> dict[str, str]:
    """The submitted values by id; ids that nobody asked for are let through.

    Raises:
        BadTable: not UTF-8 text, wrong columns, an id twice, or a value that is not allowed.
    """
    name = path.name
    try:
        text = path.read_text(encoding="utf-8-sig")
        rows = list(csv.reader(text.splitlines()))
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadTable(f"{name} is not readable as CSV: {error}") from None
    if not rows or [cell.strip() for cell in rows[0]] != [key, value]:
        raise BadTable(f"{name} must begin with the line {key},{value}")
    found: dict[str, str] = {}
    for number, row in enumerate(rows[1:], 2):
        if not row:
            continue
        if len(row) != 2:
            raise BadTable(f"{name} line {number}: {len(row)} cells, expected 2")
        name_of_row, prediction = row[0].strip(), row[1].strip()
        if prediction not in allowed:
            expected = " or ".join(sorted(allowed)) if len(allowed) < 3 else "one of the classes"
            raise BadTable(f"{name} line {number}: {prediction[:20]!r}, expected {expected}")
        if name_of_row in found:
            raise BadTable(f"{name} line {number}: id {name_of_row[:20]!r} is there twice")
        found[name_of_row] = prediction
    return found
