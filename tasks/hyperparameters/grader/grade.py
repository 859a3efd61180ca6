"""Trains with the configuration of config.json and grades it by its mean squared error on hidden rows.

The configuration is data: only the training here uses it. Exit 0: --out holds {"metrics": {"mse": ...}}.
Exit 3: it holds {"message": ...}, for the agent.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from training import BadConfig, fit, mean_squared_error, table

DATA = Path(__file__).resolve().parent / "data"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--artefact", type=Path, required=True)
    parser.add_argument("--split", choices=("val", "test"), required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    try:
        config = read_config(args.artefact / "config.json")
        predict = fit(config, *rows("train"))
    except BadConfig as error:
        args.out.write_text(json.dumps({"message": f"config.json: {error}"}))
        return 3
    error = mean_squared_error(predict, *rows(args.split))
    args.out.write_text(json.dumps({"metrics": {"mse": error}}))
    return 0


def rows(split: str) -> tuple[list[list[float]], list[float]]:
    """Rows and targets of a split."""
    found: tuple[list[list[float]], list[float]] = table((DATA / f"{split}.csv").read_text())
    return found


def read_config(path: Path) -> Any:
    """What the file holds.

    Raises:
        BadConfig: it is larger than 10 kB, or no JSON.
    """
    text = path.read_bytes()
    if len(text) > 10_000:
        raise BadConfig("larger than 10 kB")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise BadConfig("it is no JSON") from None


if __name__ == "__main__":
    sys.exit(main())
