"""Grades a submission.csv by its mean absolute error over the split's rows.

Exit 0: --out holds {"metrics": {"mae": ...}}. Exit 3: it holds {"message": ...}, for the agent.
"""

import argparse
import csv
import json
import math
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
LARGEST = 1e6
"""Largest prediction that is accepted."""


class BadTable(Exception):
    """The submitted table cannot be graded; the text is shown to the agent."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--artefact", type=Path, required=True)
    parser.add_argument("--split", choices=("val", "test"), required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with (HERE / "data" / f"{args.split}.csv").open(newline="", encoding="utf-8") as file:
        answers = {row["id"]: float(row["y"]) for row in csv.DictReader(file)}
    try:
        given = read_predictions(args.artefact / "submission.csv")
        if missing := sum(1 for row in answers if row not in given):
            raise BadTable(f"submission.csv lacks {missing} of the {len(answers)} {args.split} ids")
    except BadTable as error:
        args.out.write_text(json.dumps({"message": str(error)}))
        return 3
    errors = [abs(given[row] - answer) for row, answer in answers.items()]
    args.out.write_text(json.dumps({"metrics": {"mae": math.fsum(errors) / len(errors)}}))
    return 0


def read_predictions(path: Path) -> dict[str, float]:
    """The submitted values by id; further ids are ignored.

    Raises:
        BadTable: not UTF-8 text, wrong columns, an id twice, or a value that is not a number.
    """
    try:
        rows = list(csv.reader(path.read_text(encoding="utf-8-sig").splitlines()))
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadTable(f"submission.csv is not readable as CSV: {error}") from None
    if not rows or [cell.strip() for cell in rows[0]] != ["id", "y"]:
        raise BadTable("submission.csv must begin with the line id,y")
    predictions: dict[str, float] = {}
    for number, row in enumerate(rows[1:], 2):
        if not row:
            continue
        where = f"submission.csv line {number}"
        if len(row) != 2:
            raise BadTable(f"{where}: {len(row)} cells, expected 2")
        try:
            value = float(row[1])
        except ValueError:
            value = math.nan
        if not abs(value) <= LARGEST:  # also false for nan
            raise BadTable(f"{where}: {row[1][:20]!r}, expected a number up to {LARGEST:g}")
        if row[0].strip() in predictions:
            raise BadTable(f"{where}: id {row[0][:20]!r} is there twice")
        predictions[row[0].strip()] = value
    return predictions


if __name__ == "__main__":
    sys.exit(main())
