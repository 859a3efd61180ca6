"""Grades a submission.csv by accuracy: the share of the split's passengers predicted rightly."""

import sys
from pathlib import Path

from grading import DATA, run
from table import accuracy, label, read_pairs

LABELS = frozenset("01")


def grade(artefact: Path, split: str, seed: int) -> dict[str, float]:
    submission, answers = artefact / "submission.csv", DATA / f"{split}.csv"
    return {"accuracy": accuracy(read_pairs(submission, answers, "survived", label(LABELS)))}


if __name__ == "__main__":
    sys.exit(run(grade))
