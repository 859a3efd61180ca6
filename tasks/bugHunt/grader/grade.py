"""Lets train.py train on hidden problems and grades the networks that it returns by their accuracy.

The program sees a problem's training rows; the rows that count are never shown to it: its network, a
handful of numbers, is applied to them here.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

from grading import DATA, BadArtefact, described, run
from runner import Runner

HIDDEN, LARGEST = 12, 1e9
"""Units of the hidden layer, and the largest number that a network may hold."""


def grade(artefact: Path, split: str, seed: int) -> dict[str, float]:
    problems = json.loads((DATA / f"{split}.json").read_text())
    with Runner(artefact / "train.py", "train", seed=seed) as runner:
        scores = [accuracy(runner, **problem) for problem in problems]
    return {"accuracy": sum(scores) / len(scores), "worst_problem": min(scores)}


def accuracy(runner: Runner, train: dict[str, Any], check: dict[str, Any]) -> float:
    """The share of a problem's hidden rows that the trained network answers rightly."""
    runner.load()
    model = runner.call(train["rows"], train["labels"])
    inputs, classes = len(train["rows"][0]), max(train["labels"]) + 1
    if not isinstance(model, dict):
        raise BadArtefact("train returned no dict with mean, scale, hidden and output")
    mean, scale = (_vector(model.get(name), inputs, name) for name in ("mean", "scale"))
    if 0 in scale:
        raise BadArtefact("train returned a scale of 0")
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
        raise BadArtefact(f"train returned a {name} that is no list of {rows} lists")
    return [_vector(row, columns, name) for row in given]


def _vector(given: Any, size: int, name: str) -> list[float]:
    """The numbers of a list; refuses what is no number, not finite or too large to be computed with."""
    if not isinstance(given, list) or len(given) != size:
        raise BadArtefact(f"train returned a {name} without {size} numbers in a list")
    for number in given:
        if type(number) not in (int, float):
            raise BadArtefact(f"train returned {described(number)} in {name}, expected a number")
        if not abs(number) <= LARGEST:
            raise BadArtefact(f"train returned a number in {name} that is not within ±{LARGEST:g}")
    return [float(number) for number in given]


if __name__ == "__main__":
    sys.exit(run(grade))
