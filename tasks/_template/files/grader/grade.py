"""Grades a submission.csv by its root mean squared error over the split's rows."""

import sys
from math import fsum, sqrt
from pathlib import Path

from grading import DATA, run
from table import number, read_pairs

Y = number(-1e6, 1e6)
"""Predictions that are taken: errors can be squared and summed."""


def grade(artefact: Path, split: str, seed: int) -> dict[str, float]:
    submission, answers = artefact / "submission.csv", DATA / f"{split}.csv"
    pairs = read_pairs(submission, answers, "y", Y).values()
    squares = [(given - true) ** 2 for true, given in pairs]
    return {"rmse": sqrt(fsum(squares) / len(squares))}


if __name__ == "__main__":
    sys.exit(run(grade))
