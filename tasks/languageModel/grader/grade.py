"""Grades model.py by the bits that it needs for each character of a hidden text, read left to right.

The weights that it gives to the 96 characters are made into probabilities here, and a little of each
goes to all characters alike: p = (1 - SHARE) * weight / sum + SHARE / 96. Hence none is zero and their
sum is one, whatever it says. The metric is the mean of -log2 p of the characters that came.
"""

import sys
from array import array
from collections.abc import Callable
from math import fsum, log2
from pathlib import Path

from grading import DATA, BadArtefact, run
from runner import Limits, Runner

ALPHABET = "\n" + "".join(map(chr, range(32, 127)))
SYMBOLS = len(ALPHABET)
SHARE = 1e-4
LARGEST = 1e100
"""Of the weights that are taken: sums of them are finite."""
LIMITS = Limits(cpu_seconds=10, source_bytes=4_000_000)


def grade(artefact: Path, split: str, seed: int) -> dict[str, float]:
    text = (DATA / f"{split}.txt").read_text(encoding="ascii")
    model = artefact / "model.py"
    with Runner(model, "predict", seed=seed, limits=LIMITS, protocol=predictions) as runner:
        runner.load()
        bits = read(runner, text)
    return {"bits_per_character": fsum(bits) / len(bits), "worst_paragraph": worst(text, bits)}


def predictions(predict: Callable[[str], list[float]]) -> Callable[[bytes], bytes]:
    """Runs in the player: a request holds what came since the one before, the answer the weights."""
    from array import array

    text = ""

    def answer(request: bytes) -> bytes:
        nonlocal text
        text += request.decode("ascii")
        return array("d", predict(text)).tobytes()

    return answer


def read(runner: Runner, text: str) -> list[float]:
    """The bits of each character; the model is told of one only after it has said its weights."""
    bits, before = [], ""
    for character in text:
        weights = array("d", checked(runner.ask(before.encode("ascii"))))
        bits.append(-log2(probability(weights, ALPHABET.index(character))))
        before = character
    return bits


def checked(answer: bytes) -> bytes:
    """The answer, if it holds a number for every character."""
    if len(answer) != 8 * SYMBOLS:
        raise BadArtefact(f"predict must return {SYMBOLS} weights")
    return answer


def probability(weights: "array[float]", which: int) -> float:
    """That of one character.

    Raises:
        BadArtefact: a weight is negative, too large or no number, or all are 0.
    """
    if not all(0 <= weight <= LARGEST for weight in weights):  # NaN is not either
        raise BadArtefact(f"predict must return {SYMBOLS} weights from 0 to {LARGEST:g}")
    total = fsum(weights)
    if total == 0:
        raise BadArtefact(f"predict must return {SYMBOLS} weights with a sum above 0")
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
    sys.exit(run(grade))
