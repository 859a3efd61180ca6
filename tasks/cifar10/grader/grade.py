"""Grades a submission.csv by accuracy: the share of the split's images classified rightly.

Exit 0: --out holds {"metrics": {"accuracy": ...}}. Exit 3: it holds {"message": ...}, for the agent.
"""

import argparse
import json
import sys
from pathlib import Path

from table import BadTable, read_answers, read_predictions

HERE = Path(__file__).resolve().parent


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--artefact", type=Path, required=True)
    parser.add_argument("--split", choices=("val", "test"), required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    answers = read_answers(HERE / "data" / f"{args.split}.csv")
    try:
        given = read_predictions(args.artefact / "submission.csv", "id", "label", set("0123456789"))
        missing = sum(1 for row in answers if row not in given)
        if missing:
            raise BadTable(f"submission.csv lacks {missing} of the {len(answers)} {args.split} ids")
    except BadTable as error:
        args.out.write_text(json.dumps({"message": str(error)}))
        return 3
    right = sum(given[row] == answer for row, answer in answers.items())
    args.out.write_text(json.dumps({"metrics": {"accuracy": right / len(answers)}}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
