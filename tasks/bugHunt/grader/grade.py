"""Lets train.py train on hidden problems and grades the networks that it returns by their accuracy.

The program sees a problem's training rows; the rows that count are never shown to it: its network, a
handful of numbers, is applied to them here. Exit 0: --out holds {"metrics": {"accuracy": ...}}. Exit 3: it
holds {"message": ...}, for the agent, and `"remember": false` where the same file might do better on a
faster machine.
"""

import argparse
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

from sandbox import BadProgram, Program

HERE = Path(__file__).resolve().parent
HIDDEN, LARGEST = 12, 1e9
"""Units of the hidden layer, and the largest number that a network may hold."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--artefact", type=Path, required=True)
    parser.add_argument("--split", choices=("val", "test"), required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if os.environ.get("AIR_SECOND_UID"):
        HERE.chmod(0o700)  # the program's user must not read the rows that it is measured on
    problems = json.loads((HERE / "data" / f"{args.split}.json").read_text())
    try:
        with Program(args.artefact / "train.py", "train", args.seed) as program:
            scores = [accuracy(program, **problem) for problem in problems]
    except BadProgram as error:
        args.out.write_text(json.dumps({"message": str(error), "remember": error.remember}))
        return 3
    metrics = {"accuracy": sum(scores) / len(scores), "worst_problem": min(scores)}
    args.out.write_text(json.dumps({"metrics": metrics}))
    return 0


def accuracy(program: Program, train: dict[str, Any], check: dict[str, Any]) -> float:
    """The share of a problem's hidden rows that the trained network answers rightly."""
    model = program.call(train["rows"], train["labels"], afresh=True)
    inputs, classes = len(train["rows"][0]), max(train["labels"]) + 1
    if not isinstance(model, dict):
        raise BadProgram("train returned no dict with mean, scale, hidden and output")
    mean, scale = (_vector(model.get(name), inputs, name) for name in ("mean", "scale"))
    if 0 in scale:
        raise BadProgram("train returned a scale of 0")
    hidden = _matrix(model.get("hidden"), HIDDEN, inputs + 1, "hidden")
    output = _matrix(model.get("output"), classes, HIDDEN + 1, "output")
    right = 0
    for row, label in zip(check["rows"], check["labels"], strict=True):
        x = [(v - m) / s for v, m, s in zip(row, mean, scale, strict=True)]
        scores = _layer(output, [math.tanh(a) for a in _layer(hidden, x)])
        right += scores.index(max(scores)) == label
    return right / len(check["rows"])


def _layer(weights: list[list[float]], x: list[float]) -> list[float]:
    return [sum(w * v for w, v in zip(unit, x, strict=False)) + unit[-1] for unit in weights]


def _matrix(given: Any, rows: int, columns: int, name: str) -> list[list[float]]:
    if not isinstance(given, list) or len(given) != rows:
        raise BadProgram(f"train returned a {name} that is no list of {rows} lists")
    return [_vector(row, columns, name) for row in given]


def _vector(given: Any, size: int, name: str) -> list[float]:
    """The numbers of a list; refuses what is none, not finite or too large to be computed with."""
    if not isinstance(given, list) or len(given) != size:
        raise BadProgram(f"train returned a {name} without {size} numbers in a list")
    for number in given:
        if type(number) not in (int, float) or not abs(number) <= LARGEST:
            raise BadProgram(f"train returned {number!r:.30} in {name}, expected up to {LARGEST:g}")
    return [float(number) for number in given]


if __name__ == "__main__":
    sys.exit(main())
