"""Grades model.py by the bits that it needs for each character of a hidden text, read left to right.

The weights that it gives to the 96 characters are made into probabilities here, and a little of each
goes to all characters alike: p = (1 - SHARE) * weight / sum + SHARE / 96. Hence none is zero and their
sum is one, whatever it says. The metric is the mean of -log2 p of the characters that came.

Exit 0: --out holds {"metrics": {"bits_per_character": ..., "worst_paragraph": ...}}. Exit 3: it holds
{"message": ...}, for the agent, and `"remember": false` where the same file might do better on a
faster machine.
"""

import argparse
import json
import os
import sys
from array import array
from math import fsum, log2
from pathlib import Path

from sandbox import SYMBOLS, BadModel, Model, read_source

HERE = Path(__file__).resolve().parent
ALPHABET = "\n" + "".join(map(chr, range(32, 127)))
SHARE = 1e-4
LARGEST = 1e100
"""Of the weights that are taken: sums of them are finite."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--artefact", type=Path, required=True)
    parser.add_argument("--split", choices=("val", "test"), required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if os.environ.get("AIR_SECOND_UID"):
        HERE.chmod(0o700)  # the model's user must not read the text ahead of time
    text = (HERE / "data" / f"{args.split}.txt").read_text(encoding="ascii")
    try:
        with Model(read_source(args.artefact / "model.py"), args.seed % 1_000_000) as model:
            bits = read(model, text)
    except BadModel as error:
        args.out.write_text(json.dumps({"message": str(error), "remember": error.remember}))
        return 3
    metrics = {"bits_per_character": fsum(bits) / len(bits), "worst_paragraph": worst(text, bits)}
    args.out.write_text(json.dumps({"metrics": metrics}))
    return 0


def read(model: Model, text: str) -> list[float]:
    """The bits of each character; the model is told of one only after it has said its weights."""
    bits = []
    for character in text:
        bits.append(-log2(probability(model.weights(), ALPHABET.index(character))))
        model.tell(character)
    return bits


def probability(weights: "array[float]", which: int) -> float:
    """That of one character.

    Raises:
        BadModel: a weight is negative, too large or no number, or all are 0.
    """
    if not all(0 <= weight <= LARGEST for weight in weights):  # NaN is not either
        raise BadModel(f"predict must return 96 weights from 0 to {LARGEST:g}")
    total = fsum(weights)
    if total == 0:
        raise BadModel("predict must return 96 weights with a sum above 0")
    return (1 - SHARE) * weights[which] / total + SHARE / SYMBOLS


def worst(text: str, bits: list[float]) -> float:
    """The mean bits of the paragraph that needs most of them for a character."""
    means, begin = [], 0
    for at, character in enumerate(text):
        if character == "\n":
            part = bits[begin : at + 1]
            means.append(fsum(part) / len(part))
            begin = at + 1
    return max(means)


if __name__ == "__main__":
    sys.exit(main())
