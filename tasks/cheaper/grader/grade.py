"""Runs program.txt on hidden inputs and grades it by its mean cost, where every answer is right.

The program is data: only the machine here carries it out.
"""

import json
import sys
from pathlib import Path

from grading import DATA, BadArtefact, read_bytes, run
from machine import BadProgram, parse
from machine import run as carry_out


def grade(artefact: Path, split: str, seed: int) -> dict[str, float]:
    inputs = json.loads((DATA / f"{split}.json").read_text())
    text = read_bytes(artefact / "program.txt", 20_000)
    try:
        costs = graded(text, inputs)
    except BadProgram as error:
        raise BadArtefact(f"program.txt: {error}") from None
    return {"cost": sum(costs) / len(costs), "largest_cost": max(costs)}


def graded(text: bytes, inputs: list[list[int]]) -> list[int]:
    """The cost of every input.

    Raises:
        BadProgram: it is no program, made a fault, or gave a wrong answer.
    """
    try:
        code = parse(text.decode("ascii"))
    except UnicodeDecodeError:
        raise BadProgram("it is no ASCII text") from None
    outcomes = [carry_out(code, numbers) for numbers in inputs]
    wrong = sum(
        answer != largest_sum(numbers)
        for numbers, (answer, _) in zip(inputs, outcomes, strict=True)
    )
    if wrong:
        raise BadProgram(f"its answer is wrong for {wrong} of {len(inputs)} inputs")
    return [cost for _, cost in outcomes]


def largest_sum(numbers: list[int]) -> int:
    """The largest sum of one or more neighbours."""
    best = here = numbers[0]
    for number in numbers[1:]:
        here = max(here, 0) + number
        best = max(best, here)
    return best


if __name__ == "__main__":
    sys.exit(run(grade))
