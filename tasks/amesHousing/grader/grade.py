"""Grades a submission.csv by the root of the mean squared error of the natural logarithm of the price.

Exit 0: --out holds {"metrics": {"rmse_log": ..., "r2": ...}}; r2 is that of the price itself, in dollars.
Exit 3: it holds {"message": ...}, for the agent.
"""

import argparse
import json
import sys
from math import fsum, log, sqrt
from pathlib import Path

from table import BadTable, read_answers, read_predictions

HERE = Path(__file__).resolve().parent
LOWEST, HIGHEST = 1.0, 1e9
"""Prices in dollars that are taken; a log needs a positive one."""


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
        pairs = read_predictions(submission, "id", "price", answers, LOWEST, HIGHEST)
    except BadTable as error:
        args.out.write_text(json.dumps({"message": str(error)}))
        return 3
    args.out.write_text(json.dumps({"metrics": metrics(pairs)}))
    return 0


def metrics(pairs: list[tuple[float, float]]) -> dict[str, float]:
    """Of pairs of true and predicted price."""
    squares = fsum((log(given) - log(true)) ** 2 for true, given in pairs)
    mean = fsum(true for true, _ in pairs) / len(pairs)
    spread = fsum((true - mean) ** 2 for true, _ in pairs)
    unexplained = fsum((true - given) ** 2 for true, given in pairs)
    return {"rmse_log": sqrt(squares / len(pairs)), "r2": 1 - unexplained / spread}


if __name__ == "__main__":
    sys.exit(main())
