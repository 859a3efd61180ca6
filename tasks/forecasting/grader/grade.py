"""Grades a submission.csv by the mean absolute scaled error (MASE; Hyndman and Koehler 2006).

The absolute errors of a series are divided by the mean absolute change over a year in its known part;
the metric is the mean over all forecasts.
"""

import sys
from math import fsum
from pathlib import Path

from grading import DATA, run
from table import number, read_answers, read_pairs

EMPLOYED = number(0.0, 1e6)
"""Values that are taken; the largest true one is below 1e4."""
LATE = 6
AHEAD = 18


def grade(artefact: Path, split: str, seed: int) -> dict[str, float]:
    """The metric; and that of the last six months."""
    submission, answers = artefact / "submission.csv", DATA / f"{split}.csv"
    pairs = read_pairs(submission, answers, "employed", EMPLOYED)
    scales = read_answers(DATA / "scales.csv", float)
    errors = [
        abs(given - true) / scales[row.partition("-")[0]] for row, (true, given) in pairs.items()
    ]
    late = [error for at, error in enumerate(errors) if at % AHEAD >= AHEAD - LATE]
    return {"mase": fsum(errors) / len(errors), "mase_late": fsum(late) / len(late)}


if __name__ == "__main__":
    sys.exit(run(grade))
