"""Grades a submission.csv by the root of the mean squared error of the ratings.

Exit 0: --out holds {"metrics": {"rmse": ..., "mae": ...}}. Exit 3: it holds {"message": ...}, for the agent.
"""

import argparse
import json
import sys
from math import fsum, sqrt
from pathlib import Path

from table import BadTable, read_answers, read_predictions

HERE = Path(__file__).resolve().parent
LOWEST, HIGHEST = 0.0, 5.5
"""Values that are taken; ratings go from 0.5 to 5."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--artefact", type=Path, required=True)
    parser.add_argument("--split", choices=("val", "test"), required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    answers = read_answers(HERE / "data" / f"{args.split}.csv")
    submission = args.artefact / "submission.csv"
    try:
        pairs = read_predictions(submission, "id", "rating", answers, LOWEST, HIGHEST)
    except BadTable as error:
        args.out.write_text(json.dumps({"message": str(error)}))
        return 3
    errors = [abs(given - true) for true, given in pairs]
    rmse = sqrt(fsum(error * error for error in errors) / len(errors))
    args.out.write_text(json.dumps({"metrics": {"rmse": rmse, "mae": fsum(errors) / len(errors)}}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
