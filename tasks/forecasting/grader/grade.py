"""Grades a submission.csv by the mean absolute scaled error (MASE; Hyndman and Koehler 2006).

The absolute errors of a series are divided by the mean absolute change over a year in its known part;
the metric is the mean over all forecasts.

Exit 0: --out holds {"metrics": {"mase": ..., "mase_late": ...}}; the latter is of the last six months.
Exit 3: it holds {"message": ...}, for the agent.
"""

import argparse
import json
import sys
from math import fsum
from pathlib import Path

from table import BadTable, read_answers, read_predictions

HERE = Path(__file__).resolve().parent
LOWEST, HIGHEST = 0.0, 1e6
"""Values that are taken; the largest true one is below 1e4."""
LATE = 6
AHEAD = 18


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--artefact", type=Path, required=True)
    parser.add_argument("--split", choices=("val", "test"), required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    answers = read_answers(HERE / "data" / f"{args.split}.csv")
    scales = read_answers(HERE / "data" / "scales.csv")
    submission = args.artefact / "submission.csv"
    try:
        pairs = read_predictions(submission, "id", "employed", answers, LOWEST, HIGHEST)
    except BadTable as error:
        args.out.write_text(json.dumps({"message": str(error)}))
        return 3
    errors = [
        abs(given - true) / scales[row.partition("-")[0]]
        for row, (true, given) in zip(answers, pairs, strict=True)
    ]
    late = [error for at, error in enumerate(errors) if at % AHEAD >= AHEAD - LATE]
    metrics = {"mase": fsum(errors) / len(errors), "mase_late": fsum(late) / len(late)}
    args.out.write_text(json.dumps({"metrics": metrics}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
