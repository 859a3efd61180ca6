"""Grades a submission.csv by the root of the mean squared error of the natural logarithm of the price."""

import sys
from math import fsum, log, sqrt
from pathlib import Path

from grading import DATA, run
from table import number, read_pairs

PRICE = number(1.0, 1e9)
"""Prices in dollars that are taken; a log needs a positive one."""


def grade(artefact: Path, split: str, seed: int) -> dict[str, float]:
    """The metric; and r2, that of the price itself, in dollars."""
    submission, answers = artefact / "submission.csv", DATA / f"{split}.csv"
    pairs = read_pairs(submission, answers, "price", PRICE).values()
    squares = fsum((log(given) - log(true)) ** 2 for true, given in pairs)
    mean = fsum(true for true, _ in pairs) / len(pairs)
    spread = fsum((true - mean) ** 2 for true, _ in pairs)
    unexplained = fsum((true - given) ** 2 for true, given in pairs)
    return {"rmse_log": sqrt(squares / len(pairs)), "r2": 1 - unexplained / spread}


if __name__ == "__main__":
    sys.exit(run(grade))
