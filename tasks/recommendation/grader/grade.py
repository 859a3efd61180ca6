"""Grades a submission.csv by the root of the mean squared error of the ratings."""

import sys
from math import fsum, sqrt
from pathlib import Path

from grading import DATA, run
from table import number, read_pairs

RATING = number(0.0, 5.5)
"""Values that are taken; ratings go from 0.5 to 5."""


def grade(artefact: Path, split: str, seed: int) -> dict[str, float]:
    submission, answers = artefact / "submission.csv", DATA / f"{split}.csv"
    pairs = read_pairs(submission, answers, "rating", RATING).values()
    errors = [abs(given - true) for true, given in pairs]
    rmse = sqrt(fsum(error * error for error in errors) / len(errors))
    return {"rmse": rmse, "mae": fsum(errors) / len(errors)}


if __name__ == "__main__":
    sys.exit(run(grade))
